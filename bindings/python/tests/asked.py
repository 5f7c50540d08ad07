"""What several tests ask."""

STORY = "Tell me a story about a brave fox."
LONG = {"temperature": 0.0, "max_tokens": 400}
SHORT = {"temperature": 0.0, "max_tokens": 24}


def get_weather(city: str) -> str:
    """Get the current weather in a city.

    Args:
        city: The name of the city.
    """
    return f'{{"city": "{city}", "temperature": 17, "sky": "clear"}}'


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The name of the city."}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
