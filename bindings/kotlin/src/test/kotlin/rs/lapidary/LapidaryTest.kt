package rs.lapidary

import java.io.File
import java.util.concurrent.Callable
import java.util.concurrent.Executors
import kotlin.test.Test
import kotlin.test.assertContains
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlin.test.assertIs
import kotlin.test.assertTrue
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitAll
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.fold
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.yield

/** The library with the built-in model on the CPU. */
class LapidaryTest {
    private val story = "Tell me a story about a brave fox."
    private val small = LoadOptions(backend = "cpu", context = 512u, threads = 2u, packCache = "off")
    /** Waits for its readers, so that no answer ends before it is read. */
    private val patient = small.copy(events = 1u, patienceMs = 3_600_000u)
    private val parameters =
        """{"type": "object", "required": ["city"],
            "properties": {"city": {"type": "string", "description": "The name of the city."}}}"""

    private val elsewhere = CoroutineScope(Dispatchers.Default)

    private fun greedy(maxTokens: Int) =
        AnswerOptions(temperature = 0f, maxTokens = maxTokens.toUInt())

    private fun drawing(): ByteArray {
        val root = System.getProperty("lapidary.root") ?: "../.."
        return File(root, "pebble/heldout/images/drawing17.png").readBytes()
    }

    private fun <T> withEngine(
        options: LoadOptions = small,
        body: suspend (Engine) -> T,
    ): T = runBlocking {
        val engine = Model.pebble().engine(options)
        try {
            body(engine)
        } finally {
            engine.unload()
        }
    }

    private suspend fun fails(code: ErrorCode, body: suspend () -> Any?) {
        val e = assertFailsWith<LapidaryException>("not $code") { body() }
        assertEquals(code, e.code, e.toString())
    }

    @Test
    fun aModelSaysWhatItIsAndWhatItWouldTake() = runBlocking<Unit> {
        val model = Model.open("pebble")
        val info = model.info()
        assertContains(info.name, "pebble")
        assertTrue(Modality.IMAGE in info.modalities)
        assertTrue(info.parameters > 10_000_000u && info.canCallTools)
        val plan = model.plan(small)
        assertTrue(plan.fits && plan.backend == "cpu" && plan.context == 512u)
        assertEquals(plan.totalBytes, plan.weightBytes + plan.kvBytes + plan.activationBytes)
        val told = mutableListOf<Double>()
        val engine = model.engine(small) { told += it }
        assertTrue(told.isNotEmpty() && told == told.sorted() && told.all { it in 0.0..1.0 }, "$told")
        assertContains(engine.describe(), "cpu")
        assertEquals(plan.copy(device = engine.plan().device, text = ""), engine.plan().copy(text = ""))
        engine.unload()
    }

    @Test
    fun itChatsAndRemembers() = withEngine { engine ->
        val chat = engine.conversation(options = greedy(48))
        val events = chat.ask("What can you do?").toList()
        val finish = assertIs<Event.Finished>(events.last()).finish
        assertEquals(FinishReason.STOP, finish.reason)
        val text = events.dropLast(1).joinToString("") { assertIs<Event.Text>(it).text }
        assertContains(text, "stories")
        assertTrue(events.size > 3, "it comes in pieces")
        val stats = chat.send("What is 2 + 2?").use { it.reply() }.finish!!.stats
        assertTrue(stats.reusedTokens > 0u, "the first turn is kept: $stats")
        val roles = chat.history().map { it.role }
        assertEquals(listOf(Role.USER, Role.ASSISTANT, Role.USER, Role.ASSISTANT), roles)
        assertEquals(listOf<Part>(Part.Text(text)), chat.history()[1].parts)
        chat.truncate(1u)
        assertEquals(text, chat.answer().use { it.reply() }.text)
        chat.clear()
        assertTrue(chat.history().isEmpty())
    }

    @Test
    fun aStreamIsStoppedInTheMiddle() = withEngine(patient) { engine ->
        val asked = listOf(userMessage(story))
        // By leaving the flow.
        assertIs<Event.Text>(engine.ask(asked, greedy(48)).first())
        // By cancelling the coroutine that reads it.
        val begun = CompletableDeferred<Unit>()
        val reader = elsewhere.launch {
            engine.ask(asked, greedy(48)).collect {
                begun.complete(Unit)
                awaitCancellation()
            }
        }
        begun.await()
        reader.cancelAndJoin()
        // By letting go of it.
        engine.answer(asked, greedy(48)).use { it.next() }
        // By saying so.
        val stream = engine.answer(asked, greedy(48))
        stream.next()
        stream.cancel()
        assertEquals(FinishReason.CANCELLED, stream.reply().finish?.reason)
        while (engine.metrics().open > 0u) yield()
        assertEquals(4u, engine.metrics().cancelled)
    }

    @Test
    fun itSeesImages() = withEngine { engine ->
        val chat = engine.conversation(options = greedy(64))
        val image = Part.Image(drawing())
        val said = chat.ask("Describe this image.", image).text().fold("", String::plus)
        assertTrue("yellow" in said && "star" in said, said)
        assertContentEquals(image.bytes, assertIs<Part.Image>(chat.history()[0].parts[0]).bytes)
        fails(ErrorCode.INVALID_ARGUMENT) { chat.send("And?", listOf(Part.Image(byteArrayOf(1, 2)))) }
        assertEquals(2, chat.history().size)
    }

    @Test
    fun itCallsToolsAndHearsWhatTheyReturn() = withEngine { engine ->
        val tools = listOf(
            Tool("get_time", "Get the current time in a city.", parameters),
            Tool("get_weather", "Get the current weather in a city.", parameters),
        )
        val chat = engine.conversation(options = greedy(64).copy(tools = tools))
        val called = mutableListOf<ToolCall>()
        val reply = chat.askWithTools("What is the weather in Auckland?") { call ->
            called += call
            """{"temperature": 17, "sky": "clear"}"""
        }
        assertEquals(listOf("get_weather" to """{"city":"Auckland"}"""), called.map { it.name to it.arguments })
        assertTrue(reply.text.isNotEmpty())
        val roles = chat.history().map { it.role }
        assertEquals(listOf(Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT), roles)
        assertEquals(called[0].id, chat.history()[2].toolCallId)
    }

    @Test
    fun aSchemaHoldsTheAnswer() = withEngine { engine ->
        val schema = """{"type": "object", "required": ["n"], "additionalProperties": false,
            "properties": {"n": {"type": "integer"}}}"""
        val options = greedy(40).copy(format = Format.JsonSchema(schema))
        val text = engine.ask(listOf(userMessage("What is 2 + 2?")), options).text().fold("", String::plus)
        assertTrue(Regex("""\s*\{\s*"n"\s*:\s*-?\d+\s*\}\s*""").matches(text), text)
    }

    @Test
    fun theSameSeedGivesTheSameAnswer() = withEngine { engine ->
        val options = AnswerOptions(temperature = 1f, seed = ULong.MAX_VALUE, maxTokens = 12u, logprobs = 1u)
        suspend fun ids() = engine.ask(listOf(userMessage(story)), options).toList()
            .filterIsInstance<Event.Token>().map { it.id }
        assertEquals(12, ids().size)
        assertEquals(ids(), ids())
    }

    @Test
    fun failuresHaveCodes() = withEngine(patient) { engine ->
        fails(ErrorCode.NOT_FOUND) { Model.open("/nowhere/model.gguf") }
        fails(ErrorCode.INVALID_ARGUMENT) { Model.pebble().plan(LoadOptions(backend = "abacus")) }
        fails(ErrorCode.INVALID_ARGUMENT) {
            engine.conversation(options = AnswerOptions(format = Format.JsonSchema("{")))
        }
        val chat = engine.conversation(options = greedy(48))
        fails(ErrorCode.CONTEXT_LENGTH_EXCEEDED) { chat.send("fox ".repeat(600)) }
        val stream = chat.send(story)
        fails(ErrorCode.BUSY) { chat.send(story) }
        stream.close()
        val e = assertFailsWith<LapidaryException> { chat.sendAt(-1f) }
        assertEquals("invalid_argument", e.codeName)
        assertContains(e.toString(), "temperature")
    }

    private suspend fun Conversation.sendAt(temperature: Float) {
        setOptions(AnswerOptions(temperature = temperature))
        send(story)
    }

    @Test
    fun useAfterUnloadIsATypedError() = runBlocking<Unit> {
        val engine = Model.pebble().engine(patient)
        val asked = listOf(userMessage(story))
        val chat = engine.conversation()
        val stream = engine.answer(asked)
        stream.next()
        // Several at once, while one answer is read and another one is dropped.
        val dropped = engine.answer(asked)
        val unloads = (1..3).map { elsewhere.async { engine.unload() } }
        dropped.close()
        unloads.awaitAll()
        fails(ErrorCode.UNLOADED) { stream.events().collect {} }
        fails(ErrorCode.UNLOADED) { chat.send(story) }
        fails(ErrorCode.UNLOADED) { engine.complete("A fox ") }
        engine.unload()
        assertFalse(engine.isLoaded())
    }

    @Test
    fun manyThreadsShareOneEngine() = withEngine { engine ->
        val expected = engine.conversation(options = greedy(24)).send(story).use { it.reply() }.text
        val threads = Executors.newFixedThreadPool(8)
        val asked = (1..16).map {
            threads.submit(Callable {
                runBlocking {
                    engine.conversation(options = greedy(24)).ask(story).text().fold("", String::plus)
                }
            })
        }
        asked.forEach { assertEquals(expected, it.get()) }
        threads.shutdown()
        assertEquals(17u, engine.metrics().finished)
    }

    @Test
    fun manyReadersShareOneStream() = withEngine { engine ->
        val stream = engine.answer(listOf(userMessage(story)), greedy(24))
        val ends = (1..4).map {
            elsewhere.async {
                stream.events().toList().count { it is Event.Finished }
            }
        }.awaitAll()
        assertEquals(1, ends.sum())
    }

    @Test
    fun aHundredLoadsLeaveNothing() = runBlocking<Unit> {
        val model = Model.pebble()
        val options = small.copy(context = 256u, sequences = 1u, textOnly = true)
        fun resident(): Long {
            System.gc()
            val line = File("/proc/self/status").readLines().first { it.startsWith("RssAnon:") }
            return line.filter(Char::isDigit).toLong() / 1024
        }
        suspend fun once() {
            val engine = model.engine(options)
            val text = engine.conversation(options = greedy(2)).send(story).use { it.reply() }.text
            assertTrue(text.isNotEmpty())
            engine.unload()
            engine.close()
        }
        repeat(10) { once() }
        val before = resident()
        repeat(90) { once() }
        val after = resident()
        // One engine is more than 20 MiB, so a leak of any would be a hundred times that.
        assertTrue(after - before < 64, "resident memory grew from $before to $after MiB")
    }
}
