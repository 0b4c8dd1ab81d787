"""The closed tables of general knowledge for the `facts` family."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Country:
    """A country and the four facts about it that the model learns."""

    name: str
    capital: str
    continent: str
    language: str  # the most widely spoken of the official ones
    currency: str

    def value(self, attribute: str) -> str:
        """Return the fact with that name."""
        return str(getattr(self, attribute))


_ROWS = """
France, Paris, Europe, French, euro
Italy, Rome, Europe, Italian, euro
Spain, Madrid, Europe, Spanish, euro
Germany, Berlin, Europe, German, euro
Austria, Vienna, Europe, German, euro
Portugal, Lisbon, Europe, Portuguese, euro
England, London, Europe, English, pound
Greece, Athens, Europe, Greek, euro
Norway, Oslo, Europe, Norwegian, krone
Poland, Warsaw, Europe, Polish, zloty
Japan, Tokyo, Asia, Japanese, yen
China, Beijing, Asia, Chinese, yuan
India, New Delhi, Asia, Hindi, rupee
Thailand, Bangkok, Asia, Thai, baht
Egypt, Cairo, Africa, Arabic, pound
Kenya, Nairobi, Africa, Swahili, shilling
Peru, Lima, South America, Spanish, sol
Brazil, Brasilia, South America, Portuguese, real
Mexico, Mexico City, North America, Spanish, peso
Australia, Canberra, Oceania, English, dollar
Ireland, Dublin, Europe, English, euro
Sweden, Stockholm, Europe, Swedish, krona
Denmark, Copenhagen, Europe, Danish, krone
Finland, Helsinki, Europe, Finnish, euro
Hungary, Budapest, Europe, Hungarian, forint
Czechia, Prague, Europe, Czech, koruna
Vietnam, Hanoi, Asia, Vietnamese, dong
Iran, Tehran, Asia, Persian, rial
Iraq, Baghdad, Asia, Arabic, dinar
Ghana, Accra, Africa, English, cedi
Nigeria, Abuja, Africa, English, naira
Morocco, Rabat, Africa, Arabic, dirham
Tunisia, Tunis, Africa, Arabic, dinar
Angola, Luanda, Africa, Portuguese, kwanza
Argentina, Buenos Aires, South America, Spanish, peso
Chile, Santiago, South America, Spanish, peso
Colombia, Bogota, South America, Spanish, peso
Cuba, Havana, North America, Spanish, peso
Jamaica, Kingston, North America, English, dollar
New Zealand, Wellington, Oceania, English, dollar
"""
COUNTRIES: tuple[Country, ...] = tuple(Country(*row.split(", ")) for row in _ROWS.strip().splitlines())
WELL_KNOWN = COUNTRIES[:20]
CONTINENTS = ("Europe", "Asia", "Africa", "South America", "North America", "Oceania")
KINDS: dict[str, str] = {
    "dog": "mammal", "cat": "mammal", "horse": "mammal", "cow": "mammal", "sheep": "mammal",
    "goat": "mammal", "whale": "mammal", "lion": "mammal", "duck": "bird", "eagle": "bird", "owl": "bird",
    "ant": "insect", "bee": "insect", "fly": "insect", "snake": "reptile", "lizard": "reptile",
}  # fmt: skip
LEGS: dict[str, int] = {
    "dog": 4, "cat": 4, "horse": 4, "cow": 4, "goat": 4, "lion": 4, "tiger": 4, "frog": 4, "duck": 2,
    "eagle": 2, "owl": 2, "ant": 6, "bee": 6, "spider": 8, "snake": 0, "whale": 0,
}  # fmt: skip
_PAIRS = (
    ("big", "small"), ("hot", "cold"), ("day", "night"), ("black", "white"), ("up", "down"),
    ("left", "right"), ("old", "young"), ("long", "short"), ("fast", "slow"), ("open", "closed"),
    ("first", "last"), ("high", "low"), ("good", "bad"), ("rich", "poor"), ("happy", "sad"), ("wet", "dry"),
    ("full", "empty"), ("early", "late"), ("true", "false"), ("north", "south"), ("more", "less"),
    ("before", "after"), ("hard", "soft"), ("buy", "sell"),
)  # fmt: skip
OPPOSITES: dict[str, str] = dict(_PAIRS) | {second: first for first, second in _PAIRS}
