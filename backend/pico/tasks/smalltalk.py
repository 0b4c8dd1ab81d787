"""Greetings, thanks, farewells and questions about the model itself, alone or around a small task."""

from __future__ import annotations

import re
from random import Random

from backend.pico.tasks import arithmetic, comparison, counting, number_facts, sorting, units
from backend.pico.tasks.base import Draw, Family, Instance, normalise, split_of

HELLO = "Hello! How can I help you?"
ANSWERS: dict[str, str] = {
    "greeting": HELLO,
    "wellbeing": "I am fine, thank you. How can I help you?",
    "identity": "I am pico, a very small language model that is part of Penstock.",
    "abilities": (
        "I can do small tasks: arithmetic, comparisons, sorting, counting, unit conversion, dates, "
        "sequences, simple text operations, and finding facts in a short text."
    ),
    "thanks": "You are welcome!",
    "farewell": "Goodbye!",
    "human": "No, I am a very small language model.",
    "ping": "pong",
    "praise": "Thank you!",
    "ready": "Yes, I am here. How can I help you?",
}
_OPENERS: dict[str, tuple[str, ...]] = {
    "greeting": (
        "Hello", "Hi", "Hey", "Good morning", "Good afternoon", "Good evening", "Greetings", "Howdy",
        "Hello there", "Hi there", "Hey there", "Hello again", "Hiya", "Yo", "Good day", "Welcome",
        "Nice to meet you", "Hallo", "Salut", "Hola", "Bonjour", "Ciao", "Hello hello", "Hi hi",
    ),
    "wellbeing": (
        "How are you", "How are you doing", "How is it going", "How are things", "How do you do",
        "How are you today", "How do you feel", "What's up", "Are you well", "Are you OK",
        "How have you been", "How's it going",
    ),
    "identity": (
        "Who are you", "What are you", "What is your name", "What's your name", "Tell me about yourself",
        "Introduce yourself", "Which model are you", "What model is this", "Who am I talking to", "Your name",
        "Who made you", "Who created you", "Do you have a name", "Can you introduce yourself",
        "What kind of model are you", "Please tell me who you are", "Say who you are", "Are you ChatGPT",
        "Are you GPT-4", "Are you Qwen",
    ),
    "abilities": (
        "What can you do", "What are you able to do", "How can you help me", "What can I ask you", "Help",
        "What tasks can you do", "What are your skills", "What do you know", "Can you help me", "I need help",
        "What are you good at", "Tell me what you can do", "List your skills", "What were you trained for",
    ),
    "thanks": (
        "Thanks", "Thank you", "Thank you very much", "Many thanks", "Thanks a lot", "Thx",
        "Thanks for your help", "Great, thanks", "OK, thanks", "Thank you so much", "Perfect, thank you",
        "Cheers",
    ),
    "farewell": (
        "Bye", "Goodbye", "See you", "See you later", "Good night", "Bye bye", "Farewell", "Until tomorrow",
        "Take care", "See you soon", "Have a nice day",
    ),
    "human": (
        "Are you human", "Are you a human", "Are you a person", "Are you a real person",
        "Am I talking to a human", "Do you have feelings", "Are you alive", "Are you a man or a woman",
    ),
    "ping": ("ping", "Ping", "PING", "ping ping"),
    "praise": (
        "Good job", "Well done", "Great", "Nice", "You are great", "Very good", "Excellent", "Good answer",
        "Awesome", "That is right", "Correct", "I like you", "You are smart",
    ),
    "ready": (
        "Are you there", "Are you ready", "Anybody there", "Can you hear me", "Are you awake", "Test",
        "This is a test", "Testing", "Is this working", "Are you online", "Do you work",
    ),
}  # fmt: skip
_QUESTIONS = ("wellbeing", "identity", "abilities", "human", "ready")
_SHORT = {name: ANSWERS[name] for name in ("identity", "abilities", "human")} | {
    "wellbeing": "I am fine, thank you."
}  # text before another answer does not ask for a task again
_REQUESTS = (
    "I have a question.", "I need your help.", "Can you help me?", "Here is my question:", "A small task:",
    "Could you do this for me?", "I have a task for you:", "Please help me with this:", "Quick question:",
    "One question, please:", "Maybe you can help:", "I would like to know this.",
)  # fmt: skip
_THANKS = ("Thanks!", "Thank you!", "Thanks in advance.", "Many thanks!", "Bye!", "Thank you, friend.")
_TASK_FAMILIES = (arithmetic, comparison, counting, number_facts, sorting, units)
_TAILS = (
    "",
    "",
    "",
    " friend",
    " my friend",
    " pico",
    " model",
    " there",
    " please",
    " now",
    " bot",
    " buddy",
    " everyone",
)
_ENDS = ("", "", ".", "!", "?", "!!", " !", "...", " :)")


def _case(rng: Random, text: str) -> str:
    style = rng.random()
    if style < 0.2:
        return text.lower()
    return text.upper() if style < 0.25 else text


def _phrase(rng: Random, intent: str) -> str:
    ends = ("?", "?", "", "??", " ?", ".") if intent in _QUESTIONS else _ENDS
    return rng.choice(_OPENERS[intent]) + rng.choice(_TAILS) + rng.choice(ends)


def _key(text: str) -> str:
    """Return the key: here the words are the instance, and case and punctuation the phrasing."""
    return " ".join("".join(char if char.isalnum() else " " for char in text.lower()).split())


def _draw(text: str, intent: str) -> Draw:
    return Draw([text], ANSWERS[intent], _key(text), intent)


def _tier1(rng: Random) -> Draw:
    intent = rng.choice(list(_OPENERS))
    return _draw(_case(rng, _phrase(rng, intent)), intent)


def _tier2(rng: Random) -> Draw:
    intent = rng.choice(_QUESTIONS)
    opening = rng.choice(_OPENERS["greeting"]) + rng.choice(_TAILS) + rng.choice(("!", ".", ",", ""))
    return _draw(_case(rng, f"{opening} {_phrase(rng, intent)}"), intent)


def _tier3(rng: Random) -> Draw:
    intent = rng.choice([name for name in _OPENERS if name != "ping"])
    text = _phrase(rng, intent)
    place = rng.randrange(len(text))
    if rng.random() < 0.5:
        return _draw(text[:place] + text[place + 1 :], intent)
    return _draw(text[:place] + text[place] + text[place:], intent)


def _around_task(rng: Random, tier: int, before: str, after: str, intent: str = "") -> Draw:
    """A task surrounded by small talk; the task is of the same split as the whole."""
    while True:
        task = rng.choice(_TASK_FAMILIES).FAMILY.generate(rng, tier)
        text = " ".join(part for part in (before, task.prompt, after) if part)
        if split_of(Instance("smalltalk", tier, text, "", _key(text))) == split_of(task):
            break
    answer = f"{_SHORT[intent]} {task.answer}" if intent else task.answer
    thought = "; ".join(part for part in (f"{intent}, task" if intent else "task", task.thought) if part)
    return Draw([text], answer, _key(text), thought)


def _greeting(rng: Random) -> str:
    return rng.choice(_OPENERS["greeting"]) + rng.choice(_TAILS) + rng.choice(("!", ".", ","))


def _tier4(rng: Random) -> Draw:
    if rng.random() < 0.6:
        return _around_task(rng, 1, _greeting(rng), "")
    first, second = rng.sample(list(_SHORT), 2)
    text = f"{rng.choice(_OPENERS[first])}{rng.choice(('?', '? And', ', and'))} {_phrase(rng, second)}"
    return Draw([text], f"{_SHORT[first]} {_SHORT[second]}", _key(text), f"{first}, {second}")


def _tier5(rng: Random) -> Draw:
    tier, after = rng.randint(1, 2), rng.choice(("", *_THANKS))
    if rng.random() < 0.5:
        return _around_task(rng, tier, f"{_greeting(rng)} {rng.choice(_REQUESTS)}", after)
    intent = rng.choice([name for name in _SHORT if name != "abilities"])
    before = f"{_greeting(rng)} {rng.choice(_OPENERS[intent])}? {rng.choice(('', *_REQUESTS))}".strip()
    return _around_task(rng, tier, before, after, intent)


def grade(instance_answer: str, text: str) -> bool:
    """Return whether the text has the words of the expected answer, ignoring punctuation."""
    found, expected = (re.sub(r"(?<!\d)[.,!?]|[.,!?](?!\d)", "", part) for part in (text, instance_answer))
    return normalise(found) == normalise(expected)


FAMILY = Family(
    "smalltalk",
    {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5},
    grader=lambda instance, text: grade(instance.answer, text),
)
