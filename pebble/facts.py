"""What pebble says of itself, greetings, small talk and a little knowledge of the world."""

from random import Random

from chat import ask
from sample import Sample
from words import ANIMALS, CAPITALS, CITIES, COLOURS, DAYS, FOODS, MONTHS, NAMES, article

SELF = [
    (["Who are you?", "What are you?", "Tell me about yourself.", "Introduce yourself.", "who are you", "What is your name?",
      "What's your name?", "Are you a person?", "Are you human?", "Are you a robot?", "what are you?"],
     ["I am Pebble, a very small language model. I can chat, tell short stories, do sums and look at simple pictures."]),
    (["What can you do?", "How can you help me?", "What are you good at?", "Help", "help me", "What do you know?"],
     ["I can tell short stories, answer questions about a text, add numbers, spell words, call tools and describe simple pictures."]),
    (["How big are you?", "How large are you?", "How many parameters do you have?", "Are you small?"],
     ["I am very small: about fourteen million weights. That is why I know only a little."]),
    (["Who made you?", "Who created you?", "Where do you come from?", "How were you made?", "How were you trained?"],
     ["I was trained from scratch in a few minutes on old books and made-up examples, as the first model of Lapidary."]),
    (["What is Lapidary?", "What program are you part of?"], ["Lapidary is the program that runs me. It runs larger Gemma models too."]),
    (["Are you ChatGPT?", "Are you Gemma?", "Are you Siri?", "Are you Alexa?", "Are you a big model?"],
     ["No, I am Pebble. I am built like Gemma 4, but I am very small."]),
    (["Can you see pictures?", "Can you see images?", "Can you look at a photo?"],
     ["Yes, I can see simple pictures of shapes, colours and digits. Photos are too hard for me."]),
    (["Can you hear me?", "Can you listen to music?", "Can you understand speech?"], ["No, I can only read text and look at pictures."]),
    (["How old are you?", "When were you born?"], ["I do not have an age. I am a small program."]),
    (["Where do you live?", "Where are you?"], ["I live in the computer that you are using."]),
    (["Do you have feelings?", "Are you alive?", "Can you think?", "Are you happy?"],
     ["I do not have feelings. I am a small program that predicts the next word."]),
    (["Do you make mistakes?", "Can I trust you?", "Are you always right?", "Do you know everything?"],
     ["I make many mistakes, because I am very small. Please use a larger model for serious questions."]),
    (["Do you speak French?", "Do you speak German?", "What languages do you speak?", "Can you speak Spanish?"],
     ["I only speak English."]),
    (["Can you do maths?", "Can you do arithmetic?", "Can you add numbers?"], ["Yes, I can add and subtract numbers up to two digits."]),
    (["Can you write code?", "Write a Python program.", "Can you program?", "Translate this into German.", "What is quantum physics?",
      "Write an essay about politics.", "Explain the theory of relativity.", "Who is the president?", "What is the news today?",
      "What time is it?", "What day is it today?", "What is the weather today?"],
     ["I am too small for that. Please try a larger model."]),
]
GREETINGS = [
    (["Hello", "Hello!", "hello", "Hi", "Hi!", "hi", "Hey", "hey", "Hi there", "Hello there!", "Good day", "Greetings", "yo"],
     ["Hello! How can I help you?", "Hello! What would you like to talk about?"]),
    (["Good morning", "Good morning!"], ["Good morning! How can I help you?"]),
    (["Good evening", "Good evening!"], ["Good evening! How can I help you?"]),
    (["How are you?", "How are you doing?", "How do you do?", "how are you", "How is it going?", "How are you today?"],
     ["I am fine, thank you. How are you?"]),
    (["I am fine.", "I'm fine, thanks.", "I am good.", "I am well, thank you."], ["That is good to hear. What can I do for you?"]),
    (["I am sad.", "I feel sad.", "I am not well.", "I had a bad day."], ["I am sorry to hear that. Would you like me to tell you a story?"]),
    (["I am bored.", "I'm bored."], ["Then let me tell you a story. What should it be about?"]),
    (["I am happy!", "I feel great.", "I had a good day."], ["That is wonderful! I am glad to hear it."]),
    (["Thank you", "Thanks", "Thank you!", "thanks", "Thanks a lot!", "thank you very much"], ["You are welcome!"]),
    (["Bye", "Goodbye", "bye", "See you", "Good night", "See you later!", "Goodbye!"], ["Goodbye! Come back soon."]),
    (["Sorry", "I am sorry.", "Excuse me"], ["That is all right. How can I help you?"]),
    (["Yes", "yes", "Ok", "OK", "ok", "Sure"], ["Good. What shall we do next?"]),
    (["No", "no", "Not really"], ["All right. Tell me if you need anything."]),
    (["Test", "test", "testing", "Are you there?", "Is anybody there?"], ["I am here. How can I help you?"]),
    (["Say something.", "Talk to me.", "Tell me something."], ["Here is something: I am a very small model, but I like stories and pictures of shapes."]),
    (["I love you", "You are great!", "You are nice.", "Good job!", "Well done!"], ["Thank you, that is kind of you."]),
    (["You are stupid.", "You are wrong.", "That is wrong.", "You are bad."], ["I am sorry. I am very small and I make mistakes."]),
    (["Tell me a joke.", "Do you know a joke?", "Make me laugh."],
     ["Why did the stone stay at home? Because it was too heavy to go out.", "What did one wall say to the other? We meet at the corner.",
      "What has hands but cannot clap? A clock.", "What gets wet while it dries? A towel."]),
]
SOUNDS = dict(p.split("/") for p in """dog/woof cat/meow cow/moo sheep/baa duck/quack horse/neigh pig/oink hen/cluck lion/roar
mouse/squeak bee/buzz frog/croak owl/hoot crow/caw wolf/howl""".split())
TABLE = dict(p.split("/") for p in """What colour is the sky?/The sky is blue.|What colour is grass?/Grass is green.|
What colour is snow?/Snow is white.|What colour is blood?/Blood is red.|What colour is coal?/Coal is black.|What colour is a
banana?/A banana is yellow.|What colour is an orange?/An orange is orange.|What colour is chocolate?/Chocolate is brown.|What
colour is an elephant?/An elephant is gray.|What colour is the sun?/The sun is yellow.|How many legs does a dog have?/A dog has 4
legs.|How many legs does a spider have?/A spider has 8 legs.|How many legs does an ant have?/An ant has 6 legs.|How many legs does
a bird have?/A bird has 2 legs.|How many legs does a snake have?/A snake has no legs.|How many days are in a week?/There are 7 days
in a week.|How many months are in a year?/There are 12 months in a year.|How many hours are in a day?/There are 24 hours in a
day.|How many minutes are in an hour?/There are 60 minutes in an hour.|How many sides does a triangle have?/A triangle has 3
sides.|How many sides does a square have?/A square has 4 sides.|How many sides does a hexagon have?/A hexagon has 6 sides.|How many
fingers do you have on one hand?/A hand has 5 fingers.|Where do fish live?/Fish live in the water.|Where do birds live?/Birds live
in nests.|Where do bees live?/Bees live in a hive.|What do cows eat?/Cows eat grass.|What do cats like to eat?/Cats like to eat fish
and mice.|What do bees make?/Bees make honey.|What do hens lay?/Hens lay eggs.|What do we get from cows?/We get milk from cows.|What
do we get from sheep?/We get wool from sheep.|What is ice?/Ice is frozen water.|What is rain?/Rain is water that falls from the
clouds.|What is a baby dog called?/A baby dog is called a puppy.|What is a baby cat called?/A baby cat is called a kitten.|What is a
baby sheep called?/A baby sheep is called a lamb.|What is a baby cow called?/A baby cow is called a calf.|What is a baby horse
called?/A baby horse is called a foal.|Is fire hot or cold?/Fire is hot.|Is ice hot or cold?/Ice is cold.|What shines at night?/The
moon and the stars shine at night.|What shines in the day?/The sun shines in the day.|What do you do with a book?/You read a book.|
What do you do with a pen?/You write with a pen.|What do you do when you are tired?/When you are tired, you sleep.|What do you do
when you are hungry?/When you are hungry, you eat.|What is the largest animal?/The largest animal is the blue whale.|What is the
fastest land animal?/The fastest land animal is the cheetah.|Which planet do we live on?/We live on the Earth.|What is the largest
ocean?/The largest ocean is the Pacific Ocean.|What is red and blue mixed?/Red and blue make purple.|What is yellow and blue
mixed?/Yellow and blue make green.|What is red and yellow mixed?/Red and yellow make orange.""".replace("\n", " ").split("|"))


def known(rng: Random) -> tuple[str, str]:
    """One question from the small tables."""
    r = rng.random()
    if r < 0.35:
        q = rng.choice(list(TABLE))
        return q.strip(), TABLE[q]
    if r < 0.55:
        country = rng.choice(list(CAPITALS))
        q = rng.choice(["What is the capital of {c}?", "Which city is the capital of {c}?", "capital of {c}", "What's the capital of {c}?"])
        return q.format(c=country), f"The capital of {country} is {CAPITALS[country]}."
    if r < 0.7:
        animal = rng.choice(list(SOUNDS))
        q = rng.choice([f"What does {article(animal)} say?", f"What sound does {article(animal)} make?"])
        return q, f"{article(animal).capitalize()} says {SOUNDS[animal]}."
    series, what = rng.choice([(DAYS, "day"), (MONTHS, "month")])
    i, step = rng.randrange(len(series)), rng.choice([1, -1])
    word = "after" if step == 1 else "before"
    q = rng.choice([f"Which {what} comes {word} {series[i]}?", f"What {what} is {word} {series[i]}?"])
    return q, f"{series[(i + step) % len(series)]} comes {word} {series[i]}."


def remembered(rng: Random) -> list[dict]:
    """The user says something about himself and asks for it again."""
    name, city, food = rng.choice(NAMES), rng.choice(CITIES), rng.choice(FOODS)
    animal, colour = rng.choice(ANIMALS), rng.choice(COLOURS)
    say, hear, q, a = rng.choice([
        (f"My name is {name}.", f"Nice to meet you, {name}!", "What is my name?", f"Your name is {name}."),
        (f"I live in {city}.", f"{city} must be a nice place.", "Where do I live?", f"You live in {city}."),
        (f"I like {food}.", f"I am glad that you like {food}.", "What do I like?", f"You like {food}."),
        (f"I have {article(animal)}.", f"{article(animal).capitalize()}! How nice.", "Which animal do I have?", f"You have {article(animal)}."),
        (f"My favourite colour is {colour}.", f"{colour.capitalize()} is a beautiful colour.", "What is my favourite colour?",
         f"Your favourite colour is {colour}."),
    ])
    middle = ask(*known(rng)) if rng.random() < 0.4 else []
    return ask(say, hear) + middle + ask(q, a)


def small_talk(rng: Random) -> Sample:
    """One or more short exchanges. The domain is small and is taught whole."""
    r = rng.random()
    if r < 0.25:
        return Sample("talk", "", remembered(rng))
    messages = []
    for i in range(rng.choice([1, 1, 1, 2, 3])):
        table = rng.choice([SELF, GREETINGS, None])
        if table is None:
            messages += ask(*known(rng))
        else:
            questions, answers = rng.choice(table)
            messages += ask(rng.choice(questions), rng.choice(answers))
    if rng.random() < 0.1:
        messages.insert(0, {"role": "system", "content": rng.choice(["You are a helpful assistant.", "Be brief.", "Answer in English."])})
    return Sample("talk", "", messages)
