// What Swift has and other languages have not: asynchronous sequences, and arguments in any number.

/// The events of an answer.
public typealias Events = AsyncThrowingStream<Event, any Error>

extension LapidaryError {
    /// What kind of failure this is.
    public var code: ErrorCode {
        switch self {
        case let .Failed(code, _): return code
        }
    }

    /// What happened and what to do, in English.
    public var reason: String {
        switch self {
        case let .Failed(_, reason): return reason
        }
    }

    /// The stable name of its code, as the HTTP API writes it: `context_length_exceeded`.
    public var codeName: String { errorCodeName(code: code) }
}

extension Model {
    /// Loads the model, and tells how far that is, from 0 to 1. Cancelling the task gives it up.
    public func engine(
        options: LoadOptions? = nil,
        progress: @Sendable (Double) -> Void = { _ in }
    ) async throws -> Engine {
        let loading = load(options: options)
        return try await withTaskCancellationHandler {
            while let told = await loading.next() { progress(told.fraction) }
            return try await loading.engine()
        } onCancel: {
            loading.cancel()
        }
    }
}

extension AnswerStream {
    /// The events of the answer, to be read once. Whoever leaves the loop and lets go of the answer, or
    /// cancels the task, cancels it.
    public func events() -> Events {
        Events(unfolding: {
            try await withTaskCancellationHandler {
                try await self.next()
            } onCancel: {
                self.cancel()
            }
        })
    }
}

extension Conversation {
    /// Says something, and gives the events of the answer.
    public func ask(_ text: String, _ media: Part...) async throws -> Events {
        try await send(text: text, media: media).events()
    }

    /// Says something, and has every tool that the model calls done by `tool`, until it answers. Gives
    /// the last answer. What `tool` throws ends it.
    public func ask(
        _ text: String,
        _ media: Part...,
        tool: (ToolCall) async throws -> String
    ) async throws -> Reply {
        var reply = try await send(text: text, media: media).reply()
        while !reply.toolCalls.isEmpty {
            var results: [(ToolCall, String)] = []
            for call in reply.toolCalls { results.append((call, try await tool(call))) }
            for (call, result) in results { try addToolResult(call: call, result: result) }
            reply = try await answer().reply()
        }
        return reply
    }
}

extension Engine {
    /// Answers messages, without a conversation.
    public func ask(_ messages: [Message], options: AnswerOptions? = nil) async throws -> Events {
        try await answer(messages: messages, options: options).events()
    }
}

extension AsyncThrowingStream where Element == Event {
    /// Only the text for the user.
    public func text() -> AsyncCompactMapSequence<Self, String> {
        compactMap { event in
            if case let .text(text) = event { return text }
            return nil
        }
    }
}

extension Message {
    /// A message of the user.
    public static func user(_ text: String, _ media: Part...) -> Message {
        Message(role: .user, parts: media + [.text(text: text)])
    }

    /// Instructions.
    public static func system(_ text: String) -> Message {
        Message(role: .system, parts: [.text(text: text)])
    }

    /// Something that the model said.
    public static func assistant(_ text: String) -> Message {
        Message(role: .assistant, parts: [.text(text: text)])
    }
}
