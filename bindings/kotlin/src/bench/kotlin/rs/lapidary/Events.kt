// What it costs to be told of one event: an answer is computed first and read then, so that nothing but
// the way from Rust to Kotlin is measured. Run by `cargo xtask bindings --events`.

package rs.lapidary

import kotlin.time.measureTime
import kotlinx.coroutines.delay
import kotlinx.coroutines.runBlocking

private const val TOKENS = 400u
private const val ROUNDS = 8

fun main() = runBlocking<Unit> {
    val engine = Model.pebble().engine(LoadOptions(backend = "cpu", context = 1024u, events = 2 * TOKENS))
    val said = listOf(userMessage("Tell me a story."))
    val options = AnswerOptions(temperature = 1f, maxTokens = TOKENS, logprobs = 0u)
    var events = 0
    var all = 0.0
    var best = Double.MAX_VALUE
    repeat(ROUNDS) {
        val before = engine.metrics().finished
        val stream = engine.answer(said, options)
        while (engine.metrics().finished == before) delay(20)
        var count = 0
        val taken = measureTime { while (stream.next() != null) count++ }.inWholeNanoseconds / 1e3
        events += count
        all += taken
        best = minOf(best, taken / count)
    }
    println("Kotlin: %d events, %.1f µs each, %.1f µs at best".format(events, all / events, best))
    engine.unload()
}
