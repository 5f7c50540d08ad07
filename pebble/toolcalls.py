"""Tool calls in Gemma 4's format: the arguments stand in the request; the answer stands in the tool's response."""

from dataclasses import dataclass
from random import Random
from typing import Callable

from chat import ask
from facts import known
from sample import Sample, tool_call
from words import ANIMALS, CITIES, COLOURS, DAYS, FOODS, NAMES, OBJECTS, THINGS

Params = dict[str, tuple[str, str]]  # name: (type, description)


@dataclass
class Tool:
    """A tool, how people ask for it, and how its result is told."""
    name: str
    about: str
    params: Params
    fill: Callable[[Random], dict]
    asks: list[str]
    result: Callable[[Random, dict], tuple[object, str]]

    def schema(self) -> dict:
        """The declaration as an API client sends it."""
        props = {k: {"type": t, "description": d} for k, (t, d) in self.params.items()}
        return {"type": "function", "function": {"name": self.name, "description": self.about,
                "parameters": {"type": "object", "properties": props, "required": list(self.params)}}}


def city(rng: Random) -> dict:
    return {"city": rng.choice(CITIES)}


def weather_result(rng: Random, a: dict) -> tuple[object, str]:
    t, sky = rng.randrange(-9, 36), rng.choice(["sunny", "cloudy", "rainy", "windy", "foggy", "snowy"])
    where = a.get("city") or a.get("location")
    if rng.random() < 0.5:
        return {"condition": sky, "temperature": t}, f"It is {sky} in {where} with {t} degrees."
    return f"{sky}, {t} degrees", f"It is {sky} in {where} with {t} degrees."


def sum_args(rng: Random) -> dict:
    return {"expression": f"{rng.randrange(2, 1000)} {rng.choice('+-*/')} {rng.randrange(2, 1000)}"}


def sum_result(rng: Random, a: dict) -> tuple[object, str]:
    n = rng.randrange(1, 99999)
    return ({"result": n} if rng.random() < 0.5 else str(n)), f"{a['expression']} = {n}."


def done(text: str) -> Callable[[Random, dict], tuple[object, str]]:
    """A tool that only reports success; `text` is what the model then says."""
    def result(rng: Random, a: dict) -> tuple[object, str]:
        return rng.choice([{"status": "ok"}, "ok", "done", {"success": True}]), text.format(**a)
    return result


def clock(rng: Random) -> str:
    return f"{rng.randrange(0, 24):02d}:{rng.choice([0, 5, 10, 15, 20, 30, 40, 45, 50]):02d}"


def errand(rng: Random) -> str:
    return rng.choice(["call {n}", "buy {f}", "feed the {a}", "write to {n}", "find the {o}", "clean the {o}", "visit {n}", "sell the {t}"]).format(
        n=rng.choice(NAMES), f=rng.choice(FOODS), a=rng.choice(ANIMALS), o=rng.choice(OBJECTS), t=rng.choice(THINGS))


def time_result(rng: Random, a: dict) -> tuple[object, str]:
    t = clock(rng)
    return ({"time": t} if rng.random() < 0.5 else t), f"It is {t} in {a['city']}."


def search_result(rng: Random, a: dict) -> tuple[object, str]:
    n = rng.randrange(1, 50)
    return ({"count": n} if rng.random() < 0.5 else f"{n} results"), f"I found {n} results for {a['query']}."


def money_result(rng: Random, a: dict) -> tuple[object, str]:
    n = rng.randrange(1, 5000)
    return ({"amount": n} if rng.random() < 0.5 else str(n)), f"{a['amount']} {a['source']} are {n} {a['target']}."


MONEY = "dollars euros pounds francs yen crowns".split()
TOOLS = [
    Tool("get_weather", "Get the current weather in a city.", {"city": ("string", "The name of the city.")}, city,
         ["What is the weather in {city}?", "How is the weather in {city} today?", "Is it raining in {city}?", "weather in {city}",
          "Tell me the weather in {city}.", "Do I need an umbrella in {city}?", "How warm is it in {city}?"], weather_result),
    Tool("weather", "Weather report for a place.", {"location": ("string", "The place.")}, lambda r: {"location": r.choice(CITIES)},
         ["What is the weather like in {location}?", "Give me the weather for {location}.", "How cold is it in {location}?",
          "What's the weather in {location}?"], weather_result),
    Tool("calculate", "Calculate an arithmetic expression.", {"expression": ("string", "The expression.")}, sum_args,
         ["What is {expression}?", "Calculate {expression}.", "How much is {expression}?", "Please compute {expression}."], sum_result),
    Tool("set_timer", "Start a timer.", {"minutes": ("integer", "Length in minutes.")}, lambda r: {"minutes": r.randrange(1, 121)},
         ["Set a timer for {minutes} minutes.", "Start a {minutes} minute timer.", "Wake me in {minutes} minutes.",
          "Timer for {minutes} minutes, please.", "Remind me in {minutes} minutes."], done("The timer is set for {minutes} minutes.")),
    Tool("set_alarm", "Set an alarm.", {"time": ("string", "The time as HH:MM.")}, lambda r: {"time": clock(r)},
         ["Set an alarm for {time}.", "Wake me up at {time}.", "Please set the alarm to {time}.", "I must get up at {time}."],
         done("The alarm is set for {time}.")),
    Tool("get_time", "Get the current time in a city.", {"city": ("string", "The name of the city.")}, city,
         ["What time is it in {city}?", "Tell me the time in {city}.", "time in {city}", "How late is it in {city}?"], time_result),
    Tool("send_message", "Send a message to a person.", {"to": ("string", "Who gets the message."), "text": ("string", "The message.")},
         lambda r: {"to": r.choice(NAMES), "text": r.choice(["I am late", "see you soon", "happy birthday", "good night", "call me",
                    f"bring {r.choice(FOODS)}", f"meet me in {r.choice(CITIES)}", f"I found the {r.choice(OBJECTS)}"])},
         ["Send a message to {to}: {text}", "Tell {to}: {text}", "Write to {to}: {text}", "Send \"{text}\" to {to}.", "Text {to} \"{text}\"."],
         done("I sent your message to {to}.")),
    Tool("add_note", "Save a note.", {"text": ("string", "The note.")}, lambda r: {"text": errand(r)},
         ["Make a note: {text}", "Note that I must {text}.", "Write down: {text}", "Save a note: {text}"], done("I saved the note.")),
    Tool("add_reminder", "Remind the user of something on a day.", {"day": ("string", "The day."), "text": ("string", "What to do.")},
         lambda r: {"day": r.choice(DAYS), "text": errand(r)},
         ["Remind me on {day} to {text}.", "On {day} I have to {text}. Please remind me.", "Reminder for {day}: {text}"],
         done("I will remind you on {day} to {text}.")),
    Tool("search", "Search for something.", {"query": ("string", "What to search for.")},
         lambda r: {"query": f"{r.choice(COLOURS)} {r.choice(OBJECTS + THINGS)}" if r.random() < 0.6 else f"{r.choice(ANIMALS)} in {r.choice(CITIES)}"},
         ["Search for {query}.", "Look up {query}.", "Find {query}.", "Can you search for {query}?"], search_result),
    Tool("turn_light", "Turn a light on or off.", {"room": ("string", "The room."), "on": ("boolean", "True for on.")},
         lambda r: {"room": r.choice("kitchen bedroom garden hall bathroom garage office cellar".split()), "on": r.random() < 0.5},
         ["Turn the light in the {room} {state}.", "Light {state} in the {room}, please.", "Switch {state} the {room} light."],
         done("The light in the {room} is switched.")),
    Tool("convert_money", "Convert an amount of money.", {"amount": ("integer", "How much."), "source": ("string", "From."), "target": ("string", "To.")},
         lambda r: dict(zip(("source", "target"), r.sample(MONEY, 2))) | {"amount": r.randrange(2, 1000)},
         ["How much are {amount} {source} in {target}?", "Convert {amount} {source} to {target}.", "Change {amount} {source} into {target}."], money_result),
    Tool("play_music", "Play a song or a kind of music.", {"title": ("string", "What to play.")},
         lambda r: {"title": r.choice(["jazz", "rock", "piano music", "bird songs", f"the {r.choice(COLOURS)} {r.choice(OBJECTS)}", f"the song of the {r.choice(ANIMALS)}"])},
         ["Play {title}.", "I want to hear {title}.", "Please play {title}."], done("Now playing {title}.")),
    Tool("buy", "Order something from the shop.", {"item": ("string", "What to buy."), "count": ("integer", "How many.")},
         lambda r: {"item": r.choice(FOODS + THINGS), "count": r.randrange(2, 40)},
         ["Buy {count} {item}.", "Order {count} {item}, please.", "I need {count} {item}.", "Get me {count} {item}."], done("I ordered {count} {item}.")),
]


def request(rng: Random, tool: Tool, args: dict) -> str:
    """One way to ask for this call."""
    return rng.choice(tool.asks).format(**args, state="on" if args.get("on") else "off")


def toolcall(rng: Random) -> Sample:
    """One to three tools are declared. Mostly one is called, sometimes none is needed."""
    tools = rng.sample(TOOLS, rng.choice([1, 1, 2, 2, 3]))
    if {"get_weather", "weather"} <= {t.name for t in tools}:
        tools = [t for t in tools if t.name != "weather"]
    declared = [t.schema() for t in tools]
    if rng.random() < 0.12:
        q, a = known(rng) if rng.random() < 0.7 else rng.choice([("Hello!", "Hello! How can I help you?"), ("Thank you!", "You are welcome!")])
        return Sample("tool", "", ask(q, a), declared)
    tool = rng.choice(tools)
    args = tool.fill(rng)
    call = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": tool.name, "arguments": args}}]}
    messages = [{"role": "user", "content": request(rng, tool, args)}, call]
    if rng.random() < 0.5:
        result, told = tool.result(rng, args)
        messages += [{"role": "tool", "name": tool.name, "content": result}, {"role": "assistant", "content": told}]
        if rng.random() < 0.2:
            messages += ask("Thank you!", "You are welcome!")
    key = f"{tool.name} {sorted(args.items())}"
    return Sample("tool", key, messages, declared, tool_call(tool.name, args))
