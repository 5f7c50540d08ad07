import Foundation
import XCTest

import Lapidary

/// The library with the built-in model on the CPU.
final class LapidaryTests: XCTestCase {
    let story = "Tell me a story about a brave fox."
    let small = LoadOptions(backend: "cpu", context: 512, threads: 2, packCache: "off")
    /// Waits for its readers, so that no answer ends before it is read.
    var patient: LoadOptions {
        var options = small
        options.events = 1
        options.patienceMs = 3_600_000
        return options
    }
    let parameters = """
        {"type": "object", "required": ["city"],
         "properties": {"city": {"type": "string", "description": "The name of the city."}}}
        """

    func greedy(_ maxTokens: UInt32) -> AnswerOptions {
        AnswerOptions(temperature: 0, maxTokens: maxTokens)
    }

    func drawing() throws -> Data {
        let root = ProcessInfo.processInfo.environment["LAPIDARY_ROOT"] ?? "../.."
        return try Data(contentsOf: URL(fileURLWithPath: "\(root)/pebble/heldout/images/drawing17.png"))
    }

    func engine(_ options: LoadOptions? = nil) async throws -> Engine {
        try await Model.pebble().engine(options: options ?? small)
    }

    func fails(
        _ code: ErrorCode, line: UInt = #line, _ body: () async throws -> Void
    ) async {
        do {
            try await body()
            XCTFail("it went well", line: line)
        } catch let e as LapidaryError {
            XCTAssertEqual(e.code, code, e.reason, line: line)
        } catch {
            XCTFail("\(error)", line: line)
        }
    }

    func testAModelSaysWhatItIsAndWhatItWouldTake() async throws {
        let model = try await Model.open(source: "pebble")
        let info = model.info()
        XCTAssertTrue(info.name.contains("pebble") && info.canCallTools)
        XCTAssertTrue(info.modalities.contains(.image))
        let plan = try await model.plan(options: small)
        XCTAssertTrue(plan.fits && plan.backend == "cpu" && plan.context == 512)
        let engine = try await model.engine(options: small)
        XCTAssertTrue(engine.describe().contains("cpu"))
        try await engine.unload()
    }

    func testItChatsAndRemembers() async throws {
        let chat = try await engine().conversation(options: greedy(48))
        var text = ""
        for try await piece in try await chat.ask("What can you do?").text() { text += piece }
        XCTAssertTrue(text.contains("stories"), text)
        let second = try await chat.send(text: "What is 2 + 2?").reply()
        XCTAssertGreaterThan(try XCTUnwrap(second.finish).stats.reusedTokens, 0)
        XCTAssertEqual(chat.history().map(\.role), [.user, .assistant, .user, .assistant])
    }

    func testAStreamIsStoppedInTheMiddle() async throws {
        let engine = try await engine(patient)
        let (asked, options) = ([Message.user(story)], greedy(48))
        // By leaving the loop.
        for try await _ in try await engine.ask(asked, options: options) { break }
        // By cancelling the task.
        let (begun, go) = AsyncStream<Void>.makeStream()
        let reader = Task {
            for try await _ in try await engine.ask(asked, options: options) {
                go.yield()
                while !Task.isCancelled { await Task.yield() }
            }
        }
        for await _ in begun { break }
        reader.cancel()
        _ = try await reader.value
        // By saying so.
        let stream = try await engine.answer(messages: asked, options: options)
        _ = try await stream.next()
        stream.cancel()
        let finish = try await stream.reply().finish
        XCTAssertEqual(finish?.reason, .cancelled)
        while engine.metrics().open > 0 { await Task.yield() }
        XCTAssertEqual(engine.metrics().cancelled, 3)
    }

    func testItSeesImages() async throws {
        let chat = try await engine().conversation(options: greedy(64))
        var said = ""
        let image = Part.image(bytes: try drawing())
        for try await piece in try await chat.ask("Describe this image.", image).text() { said += piece }
        XCTAssertTrue(said.contains("yellow") && said.contains("star"), said)
        XCTAssertEqual(chat.history()[0].parts[0], image)
        await fails(.invalidArgument) {
            _ = try await chat.send(text: "And?", media: [.image(bytes: Data([1, 2]))])
        }
    }

    func testItCallsToolsAndHearsWhatTheyReturn() async throws {
        var options = greedy(64)
        options.tools = [
            Tool(name: "get_time", description: "Get the current time in a city.", parameters: parameters),
            Tool(name: "get_weather", description: "Get the current weather in a city.", parameters: parameters),
        ]
        let chat = try await engine().conversation(options: options)
        var called: [ToolCall] = []
        let reply = try await chat.ask("What is the weather in Auckland?") { call in
            called.append(call)
            return #"{"temperature": 17, "sky": "clear"}"#
        }
        XCTAssertEqual(called.map(\.name), ["get_weather"])
        XCTAssertEqual(called.map(\.arguments), [#"{"city":"Auckland"}"#])
        XCTAssertFalse(reply.text.isEmpty)
        XCTAssertEqual(chat.history().map(\.role), [.user, .assistant, .tool, .assistant])
    }

    func testASchemaHoldsTheAnswer() async throws {
        var options = greedy(40)
        options.format = .jsonSchema(schema: #"""
            {"type": "object", "required": ["n"], "additionalProperties": false,
             "properties": {"n": {"type": "integer"}}}
            """#)
        let reply = try await engine().answer(messages: [.user("What is 2 + 2?")], options: options).reply()
        let json = try JSONSerialization.jsonObject(with: Data(reply.text.utf8)) as? [String: Int]
        XCTAssertEqual(json.map { Array($0.keys) }, ["n"])
    }

    func testFailuresHaveCodes() async throws {
        let engine = try await engine(patient)
        await fails(.notFound) { _ = try await Model.open(source: "/nowhere/model.gguf") }
        await fails(.invalidArgument) {
            _ = try await Model.pebble().plan(options: LoadOptions(backend: "abacus"))
        }
        let chat = try engine.conversation(options: greedy(48))
        await fails(.contextLengthExceeded) {
            _ = try await chat.send(text: String(repeating: "fox ", count: 600))
        }
        let stream = try await chat.send(text: story)
        await fails(.busy) { _ = try await chat.send(text: story) }
        _ = try await stream.reply()
    }

    func testUseAfterUnloadIsATypedError() async throws {
        let engine = try await engine(patient)
        let stream = try await engine.answer(messages: [.user(story)])
        let chat = try engine.conversation()
        _ = try await stream.next()
        try await withThrowingTaskGroup(of: Void.self) { group in
            for _ in 0..<3 { group.addTask { try await engine.unload() } }
            try await group.waitForAll()
        }
        await fails(.unloaded) { for try await _ in stream.events() {} }
        await fails(.unloaded) { _ = try await chat.send(text: story) }
        try await engine.unload()
        XCTAssertFalse(engine.isLoaded())
    }

    func testManyTasksShareOneEngine() async throws {
        let engine = try await engine()
        let (options, story) = (greedy(24), story)
        let expected = try await engine.conversation(options: options).send(text: story).reply().text
        try await withThrowingTaskGroup(of: String.self) { group in
            for _ in 0..<16 {
                group.addTask {
                    try await engine.conversation(options: options).send(text: story).reply().text
                }
            }
            for try await text in group { XCTAssertEqual(text, expected) }
        }
    }

    #if os(Linux)
    func testAHundredLoadsLeaveNothing() async throws {
        let model = try await Model.pebble()
        let options = LoadOptions(
            backend: "cpu", context: 256, sequences: 1, threads: 2, textOnly: true, packCache: "off")
        func resident() throws -> Int {
            let status = try String(contentsOfFile: "/proc/self/status", encoding: .utf8)
            let line = status.split(separator: "\n").first { $0.hasPrefix("RssAnon:") }
            return try XCTUnwrap(line.flatMap { Int($0.filter(\.isNumber)) }) / 1024
        }
        func once() async throws {
            let engine = try await model.engine(options: options)
            let reply = try await engine.conversation(options: greedy(2)).send(text: story).reply()
            XCTAssertFalse(reply.text.isEmpty)
            try await engine.unload()
        }
        for _ in 0..<10 { try await once() }
        let before = try resident()
        for _ in 0..<90 { try await once() }
        let after = try resident()
        XCTAssertLessThan(after - before, 64, "resident memory grew from \(before) to \(after) MiB")
    }
    #endif
}
