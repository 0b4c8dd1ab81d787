"""Greetings, thanks, farewells and questions about the model itself."""

from __future__ import annotations

from random import Random

from backend.pico.tasks.base import Draw, Family, normalise

HELLO = "Hello! How can I help you?"
ANSWERS: dict[str, str] = {
    "greeting": HELLO,
    "wellbeing": "I am fine, thank you. How can I help you?",
    "identity": "I am pico-small, a very small language model that is part of Penstock.",
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


def _draw(text: str, intent: str) -> Draw:
    # Here the words are the instance; case and punctuation are the phrasing.
    key = " ".join("".join(char if char.isalnum() else " " for char in text.lower()).split())
    return Draw([text], ANSWERS[intent], key)


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


def grade(instance_answer: str, text: str) -> bool:
    """True when the text carries the words of the expected answer, whatever its punctuation."""
    strip = str.maketrans("", "", ".,!?")
    return normalise(text.translate(strip)) == normalise(instance_answer.translate(strip))


FAMILY = Family(
    "smalltalk", {1: _tier1, 2: _tier2, 3: _tier3}, grader=lambda instance, text: grade(instance.answer, text)
)
