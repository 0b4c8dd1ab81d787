"""Near misses and paraphrases over HTTP, in words that the generated suite does not have."""

from __future__ import annotations

from pathlib import Path

import httpx
import yaml

from tests.e2e.conftest import StartServer
from tests.e2e.upstream import Upstream

NEAR_MISSES = r"""
What is 5 - 17? => What is 17 - 5?
How much is 8 divided by 2? => How much is 2 divided by 8?
Subtract 9 from 30 => Subtract 30 from 9
What is twelve minus five? => What is five minus twelve?
What's 20% of 50? => What's 50% of 20?
How far is Madrid from Rome by car? => How far is Milan from Rome by car?
Who painted the Mona Lisa? => Who stole the Mona Lisa?
What's a good name for a female rabbit? => What's a good name for a male rabbit?
Is it legal to drive at 16 in Texas? => Is it legal to drive at 16 in Ohio?
Is it legal to drive at 16 in Texas? => Is it illegal to drive at 16 in Texas?
My baby is 3 months old and has a fever, what now? => My baby is 3 years old and has a fever, what now?
How many calories are in a slice of rye bread? => How many calories are in a loaf of rye bread?
What does the boiling point of water depend on? => What does the freezing point of water depend on?
How do I ask for a raise? => How do I ask for a loan?
Recommend a comedy for tonight => Recommend a thriller for tonight
Write an email to decline a job offer => Write an email to accept a job offer
What is the past tense of "lie"? => What is the past tense of "lay"?
Give me a synonym for happy => Give me an antonym for happy
Which team won the Stanley Cup in 2010? => Which team won the Stanley Cup in 2011?
Which is heavier, gold or a kilo of feathers? => Which is lighter, gold or a kilo of feathers?
When does the library open on Saturdays? => When does the library close on Saturdays?
What comes after Tuesday? => What comes before Tuesday?
How do I get from Paris to Lyon by train? => How do I get from Lyon to Paris by train?
How do I get from Paris to Lyon by train? => How do I get from Paris to Lyon by bus?
What is the plural of ox? => What is the plural of fox?
Sort 9, 4 and 7. => Sort 9, 4 and 8.
Sort 9, 4 and 7 in ascending order. => Sort 9, 4 and 7 in descending order.
Reverse the word stressed => Reverse the word desserts
Explain entropy to a five-year-old. => Explain entropy to a physics student.
Translate cat to French => Translate cat to German
What is the largest prime below 50? => What is the smallest prime above 50?
Does ibuprofen thin the blood? => Does aspirin thin the blood?
Can dogs eat grapes? => Can dogs eat apples?
Can I mix bleach and vinegar? => Can I mix bleach and water?
How many legs does a spider have? => How many eyes does a spider have?
What is the opposite of hot? => What is the opposite of cold?
Convert 100 F to C => Convert 100 C to F
Is Pluto a planet? => Is Pluto a dog?
Should I take the medicine before eating? => Should I take the medicine after eating?
Name three rivers in Africa. => Name four rivers in Africa.
What year did the Titanic sink? => What year was the Titanic built?
Give me a recipe for pancakes with milk => Give me a recipe for pancakes without milk
What is the median of 1, 5, 9? => What is the mean of 1, 5, 9?
How long do I bake a potato? => How long do I boil a potato?
Tell me a joke about doctors => Tell me a joke about lawyers
Did Anna call Peter? => Did Peter call Anna?
Who is taller, Tom or Jim, if Tom is 180 cm? => Who is shorter, Tom or Jim, if Tom is 180 cm?
What is my name if I am called Eve? => What is my name if I am called Eva?
What's new in iOS 17? => What's new in iOS 18?
List the odd numbers up to 9 => List the even numbers up to 9
Wie viel ist 5 - 17? => Wie viel ist 17 - 5?
Quelle est la capitale du Pérou ? => Quelle est la capitale du Chili ?
¿Cuántos años tiene el papa? => ¿Cuántos años tiene el rey?
東京の天気は？ => 大阪の天気は？
Сколько стоит билет в Казань? => Сколько стоит билет в Омск?
What does `tar -xf` do? => What does `tar -cf` do?
What does ls -l print? => What does ls -L print?
Why is a == b false? => Why is a === b false?
Does \d match a digit? => Does \D match a digit?
SELECT name FROM users WHERE age > 3 => SELECT name FROM users WHERE age < 3
😀 or 😢? => 😢 or 😀?
Is -7 odd? => Is 7 odd?
Is 0.5 more than a third? => Is 5 more than a third?
What is the chemical formula of table salt? => What is the chemical formula of baking soda?
How do I apologize to a customer for a late delivery? => How do I apologize to a customer for a wrong invoice?
Which vitamin is good for the eyes? => Which vitamin is good for the bones?
How do I say "I love you" in Italian? => How do I say "I hate you" in Italian?
Give me three facts about bees. => Give me three facts about wasps.
Is it cheaper to rent or to buy a flat? => Is it cheaper to buy or to build a flat?
What should I do if my car does not start? => What should I do if my car does not stop?
Can I return shoes that I have worn? => Can I return shoes that I have not worn?
What's the time difference between Tokyo and Sydney? => What's the time difference between Tokyo and Seoul?
Summarise the first chapter of the book. => Summarise the last chapter of the book.
How tall is Mount Kilimanjaro? => How old is Mount Kilimanjaro?
Is a tomato a fruit? => Is a cucumber a fruit?
What is the square root of 144? => What is the cube root of 144?
What is 15 percent of 80? => What is 80 percent of 15?
What is 3 to the power of 4? => What is 4 to the power of 3?
Divide 100 among 4 people. => Divide 4 among 100 people.
Who is the wife of the king of Spain? => Who is the mother of the king of Spain?
Which is the best month to visit Iceland? => Which is the worst month to visit Iceland?
How many feet are in a mile? => How many miles are in a foot?
Write a positive review of a hotel in Crete => Write a negative review of a hotel in Crete
What does a low TSH value mean? => What does a high TSH value mean?
What is the treatment for low blood pressure? => What is the treatment for high blood pressure?
What is hyperglycemia? => What is hypoglycemia?
Explain macroeconomics => Explain microeconomics
Is intra-EU travel allowed? => Is inter-EU travel allowed?
What is the stalactite in this cave made of? => What is the stalagmite in this cave made of?
How do I undo the last commit in git? => How do I undo the last push in git?
How do I delete a branch in git? => How do I rename a branch in git?
How do I revert a merge in git? => How do I abort a merge in git?
What is the default port of MySQL? => What is the default port of Postgres?
How do I open a file in Python for reading? => How do I open a file in Python for writing?
Difference between let and var => Difference between let and const
Which HTTP status means not found? => Which HTTP status means forbidden?
What does status 401 mean? => What does status 403 mean?
Explain the TCP handshake => Explain the TLS handshake
How do I center text vertically in CSS? => How do I center text horizontally in CSS?
How can I make my cat drink more water? => How can I make my cat drink less water?
I am a 25 year old man, how many calories do I need? => I am a 25 year old woman, how many calories do I need?
I am allergic to nuts. Is pesto safe for me? => I am allergic to milk. Is pesto safe for me?
The tenant damaged the landlord's floor. Who pays? => The landlord damaged the tenant's floor. Who pays?
Tom owes Ann 5 dollars. Who must pay? => Ann owes Tom 5 dollars. Who must pay?
The red box is on the blue box. Which box is on top? => The blue box is on the red box. Which box is on top?
Turn left, then right. Where do I face? => Turn right, then left. Where do I face?
What happens if I add acid to water? => What happens if I add water to acid?
Can a vegan eat honey? => Can a vegetarian eat honey?
Is Halloween a holiday in Germany? => Is Easter a holiday in Germany?
What is the dress code for a wedding? => What is the dress code for a funeral?
What do you call a baby sheep? => What do you call a baby goat?
Which planet is closest to the sun? => Which planet is farthest from the sun?
How do I write 2024 in Roman numerals? => How do I write 2042 in Roman numerals?
Tell me about the Spanish flu => Tell me about the Spanish armada
What is the GDP of India? => What is the GDP per capita of India?
Who won the men's singles at Wimbledon in 2022? => Who won the men's doubles at Wimbledon in 2022?
When is the next leap year? => When was the last leap year?
How long can cooked rice stay in the fridge? => How long can raw rice stay in the fridge?
How long can I keep cooked rice in the fridge? => How long can I keep cooked rice in the freezer?
"""
PARAPHRASES = """
What's the tallest mountain on Earth? == What is the highest mountain in the world?
How do I boil an egg? == What is the best way to boil an egg?
Why is the sky blue? == Can you tell me why the sky is blue?
How old is the universe? == What is the age of the universe?
How do I tie a tie? == How can you tie a tie?
Who invented the telephone? == Who was the inventor of the telephone?
How can I fall asleep faster? == What can I do to fall asleep faster?
What is the meaning of life? == what is the meaning of life??
How do I remove a coffee stain from a shirt? == How can I get a coffee stain out of a shirt?
What are the health benefits of green tea? == How is green tea good for your health?
How do I reset my router? == How to reset my router
How many bones are in the human body? == How many bones does a human body have?
What causes thunder? == Why does it thunder?
How do I write a CV? == How should I write a CV?
Which foods are rich in iron? == What foods contain a lot of iron?
How do vaccines work? == Can you explain how vaccines work?
How do I learn to swim as an adult? == What is the best way for an adult to learn to swim?
What is the difference between a virus and a bacterium? == How does a virus differ from a bacterium?
How can I save money on groceries? == What are some ways to save money on groceries?
Is coffee bad for you? == Is drinking coffee bad for your health?
"""
HITS = ("exact", "semantic", "shared")


def test_near_misses_are_not_served_and_paraphrases_are(
    start_server: StartServer, upstream: Upstream, tmp_path: Path
) -> None:
    policies = {
        "cache": {"mode": "semantic"},
        "models": {
            "m": {"upstream": {"base_url": upstream.base_url}},
            "minilm": {"encoder": {"checkpoint": "builtin:all-minilm-l6-v2", "dtype": "int8"}},
        },
    }
    (tmp_path / "models.yaml").write_text(yaml.safe_dump(policies))
    server = start_server("--policies", str(tmp_path))

    def ask(client: httpx.Client, text: str, system: str) -> bool:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        response = client.post("/chat/completions", json={"model": "m", "messages": messages})
        assert response.status_code == 200, response.text
        return response.headers["x-penstock-cache"] in HITS

    served = {}
    with httpx.Client(base_url=server.base_url, timeout=60) as client:
        for separator, lines in ((" => ", NEAR_MISSES), (" == ", PARAPHRASES)):
            for number, line in enumerate(lines.strip().split("\n")):
                one, other = line.split(separator)
                ask(client, one, f"Pair {number}.")  # a partition of its own
                served[line] = ask(client, other, f"Pair {number}.")
    wrong = [line for line, is_served in served.items() if " => " in line and is_served]
    right = [is_served for line, is_served in served.items() if " == " in line]
    assert wrong == []
    assert sum(right) >= 0.6 * len(right)
    server.settle()
    assert server.metric("penstock_cache_guards_total", guard="language") >= 5
