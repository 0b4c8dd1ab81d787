"""The part of a prompt that asks: without the greetings and the small talk before it.

No list of phrases: a leading sentence is left out for what it lacks. It has no number, quotation, formula or
list, none of its content words returns in what follows, and what follows asks by itself. A text without such
signs of a task in its rest stays whole: its first sentence may be the task.
"""

from __future__ import annotations

import re

from router.signals.surface import MAX_CHARS

_STOP = "[.!?…؟।]"
_EMOJI = r"[☀-➿\U0001f300-\U0001faff]"
_SENTENCE = re.compile(
    rf".+?(?:(?:(?<!{_STOP}{{2}}){_STOP}++|[:;]-?[)(D]|(?<!{_EMOJI}{{2}}){_EMOJI}++)[\"'”’»)]*+(?=\s|$)"
    r"|[。！？]+|\n|$)\s*",
    re.DOTALL,
)
_CONTENT = re.compile(r"\d|[\"“”„«»`{}\[\]<>=|\\^√]|[:：](?:\s|$)|\w[:：]\w|^\s*[-*•] ")
_EXPRESSION = re.compile(r"\d\s*[-+*/^=×÷%−]\s*\d")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_QUESTION = re.compile(r"[?？؟]")
_SPEAKS = re.compile(r"\W*[^\W\d_]+,? [^\W\d_]{2}")
"""Begins with two words, as a request does; a list does not."""
_WORD = re.compile(r"[^\W\d_]+|\d+")
_HAN = re.compile(r"[\u3400-\u9fff]+")
_STEM_CHARS = 5
_FUNCTION_WORDS = frozenset(
    """all and any are but can did for get got had has her him his how let may not now off one our out see she
    the too try use was way who why yes yet you about after again also another because been before being
    between both could does doing done down during each else even ever every from give have having here
    into just know like made make many more most much must need only other over please same shall should
    some such tell than that their them then there these they this those through today under until very
    want well were what when where which while will with would your aus bei bin das dem den der des die dir
    ein für hat ich ihr ist mal mit nur nun und uns vom von war wie wir zum zur aber auch bitte dann dass
    deine diese dieser doch eine einem einen einer etwas habe haben heute ihnen immer kann kannst kein
    keine mein meine mich mir möchte nach nicht noch oder sagen schon sehr sein sich sind viel viele wann
    warum werden wenn wird wäre como con cuando cuánto cuántos desde donde ella ellos del ese eso hay las
    los más mis nos por que qué ser sin soy sus una uno esta este esto estoy hacer hasta hola mucho muchos
    muy nada para pero poco porque puede puedes quiero sobre también tengo tiene todo todos usted ai au aux
    ça ces est les lui mon ont qui son ton avec avoir beaucoup bien cela cette combien comme comment dans
    elle encore être fait ici ils leur mais même mes moi nous par pas plus pour pourquoi quand quel quelle
    sans ses sont sur très tout tous une vos votre vous anche che come cosa così dove hanno molto nella non
    ogni perché più quale quando quanto quello questa questo sono tutto uma você está fazer isso muito não
    nós obrigado pode quais qual qualquer quero seja são tem tenho voor van een het niet wat hoe dit zijn
    heb hebben""".split()
)  # fmt: skip


def asking_part(text: str) -> str:
    """The text from the first sentence on that belongs to the task, with earlier ones that it refers to."""
    if len(text) > MAX_CHARS:
        return text
    sentences = _SENTENCE.findall(text)
    start = _task_start(sentences)
    rest = sentences[start:]
    if not start or not _asks_by_itself(rest):
        return text
    known = {stem for each in rest for stem in _stems(each)}
    has_question = any(map(_QUESTION.search, rest))
    for number in reversed(range(start)):
        stems = _stems(sentences[number])
        if stems & known or (not has_question and _QUESTION.search(sentences[number])):
            known, start = known | stems, number
    return "".join(sentences[start:]).strip()


def _task_start(sentences: list[str]) -> int:
    """The number of the first sentence with a task of its own, else with content; 0 where none has any."""
    for is_task in (_EXPRESSION.search, _is_complete, _CONTENT.search):  # small talk has numbers too
        found = next((number for number, each in enumerate(sentences) if is_task(each)), None)
        if found is not None:
            return 0 if _has_task(sentences[:found]) else found
    return 0


def _is_complete(sentence: str) -> bool:
    return len(_NUMBER.findall(sentence)) > 1 and bool(_SPEAKS.match(sentence))


def _has_task(sentences: list[str]) -> bool:
    """Whether one asks about what another tells with numbers."""
    told = {stem for each in sentences if _CONTENT.search(each) for stem in _stems(each)}
    return any(_QUESTION.search(each) and told & _stems(each) for each in sentences)


def _asks_by_itself(rest: list[str]) -> bool:
    return any(map(_QUESTION.search, rest)) or (len(rest) == 1 and bool(_SPEAKS.match(rest[0])))


def _stems(sentence: str) -> set[str]:
    """Beginnings of content words, numbers, single letters as in formulas, pairs of Han characters."""
    found = set()
    for word in _WORD.findall(sentence):
        low = word.casefold()
        if word[0].isdigit() or (len(word) > 2 and low not in _FUNCTION_WORDS) or low in "bcdfgknpqrvwxz":
            found.add(low.removesuffix("s").removesuffix("e")[:_STEM_CHARS])  # boxes, box
    for run in _HAN.findall(sentence):
        found.update(run[at : at + 2] for at in range(len(run) - 1))
    return found
