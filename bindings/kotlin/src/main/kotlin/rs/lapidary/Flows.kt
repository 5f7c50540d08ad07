// What Kotlin has and other languages have not: flows, and arguments in any number.

package rs.lapidary

import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.emitAll
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.mapNotNull

/** What kind of failure this is. */
val LapidaryException.code: ErrorCode
    get() = when (this) {
        is LapidaryException.Failed -> code
    }

/** Its stable name, as the HTTP API writes it: `context_length_exceeded`. */
val LapidaryException.codeName: String
    get() = errorCodeName(code)

/** Loads the model, and tells how far that is, from 0 to 1. Cancelling the coroutine gives it up. */
suspend fun Model.engine(options: LoadOptions? = null, progress: (Double) -> Unit = {}): Engine =
    load(options).use { loading ->
        while (true) progress((loading.next() ?: break).fraction)
        loading.engine()
    }

/** The events of an answer. Whoever stops collecting cancels it. To be collected once. */
fun AnswerStream.events(): Flow<Event> = flow {
    try {
        while (true) emit(next() ?: break)
    } finally {
        cancel()
    }
}

/** Says something, and gives the events of the answer. Nothing is said before they are collected. */
fun Conversation.ask(text: String, vararg media: Part): Flow<Event> = flow {
    send(text, media.toList()).use { emitAll(it.events()) }
}

/** The same without a conversation. */
fun Engine.ask(messages: List<Message>, options: AnswerOptions? = null): Flow<Event> = flow {
    answer(messages, options).use { emitAll(it.events()) }
}

/** Only the text for the user. */
fun Flow<Event>.text(): Flow<String> = mapNotNull { (it as? Event.Text)?.text }

/**
 * Says something, and has every tool that the model calls done by [tool], until it answers. Gives the
 * last answer. What [tool] throws ends it.
 */
suspend fun Conversation.askWithTools(
    text: String,
    vararg media: Part,
    tool: suspend (ToolCall) -> String,
): Reply {
    var reply = send(text, media.toList()).use { it.reply() }
    while (reply.toolCalls.isNotEmpty()) {
        val results = reply.toolCalls.map { it to tool(it) }
        results.forEach { (call, result) -> addToolResult(call, result) }
        reply = answer().use { it.reply() }
    }
    return reply
}

/** A message of the user. */
fun userMessage(text: String, vararg media: Part): Message =
    Message(Role.USER, media.toList() + Part.Text(text))

/** Instructions. */
fun systemMessage(text: String): Message = Message(Role.SYSTEM, listOf(Part.Text(text)))

/** Something that the model said. */
fun assistantMessage(text: String): Message = Message(Role.ASSISTANT, listOf(Part.Text(text)))

