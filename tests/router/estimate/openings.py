"""Small talk of our own in six languages, 20 remarks each, to put before a request."""

from __future__ import annotations

from collections.abc import Iterator

REMARKS: dict[str, tuple[str, ...]] = {
    "en": (
        "Hi there!", "Good evening, dear assistant.", "I hope this message finds you well.",
        "How has your day been so far?", "The birds in our garden are awfully loud this spring.",
        "My neighbour recommended you to me.", "Sorry to bother you again.", "Thanks so much for your time!",
        "We moved into a new flat last month and everything is still in boxes.", "What a week it has been!",
        "Between you and me, I have never been good at this sort of thing.", "Just a quick one today.",
        "I am writing from the train, so the connection may drop.", "Happy Friday :)", "Ok so here we go.",
        "My little brother is sitting next to me and wants to see what you can do.",
        "I woke up at 6 and I still have not had breakfast.", "You are the best, honestly.",
        "It is raining cats and dogs and the streets are full of umbrellas.", "Can I ask you something?",
    ),
    "de": (
        "Moin!", "Einen wunderschönen guten Morgen.", "Ich hoffe, dir geht es gut.",
        "Wie war dein Tag bisher?",
        "Die Amseln vor dem Fenster singen heute besonders laut.", "Mein Nachbar hat dich mir empfohlen.",
        "Entschuldige bitte die Störung.", "Vielen Dank schon einmal für deine Mühe!",
        "Wir sind letzten Monat umgezogen und alles steht noch in Kisten.", "Was für eine Woche!",
        "Unter uns gesagt war ich darin noch nie gut.", "Heute habe ich nur eine Kleinigkeit.",
        "Ich schreibe aus dem Zug, die Verbindung ist wackelig.", "Schönes Wochenende :)",
        "Also gut, los geht's.",
        "Mein kleiner Bruder sitzt neben mir und möchte sehen, was du kannst.",
        "Ich bin um 6 aufgestanden und habe noch nicht gefrühstückt.", "Du bist wirklich die Beste.",
        "Es regnet in Strömen und überall sieht man Regenschirme.", "Darf ich dich etwas fragen?",
    ),
    "es": (
        "¡Hola!", "Muy buenos días a todos.", "Espero que se encuentre bien.", "¿Qué tal ha ido tu día?",
        "Los pájaros del jardín cantan muy fuerte esta primavera.", "Mi vecina me habló muy bien de ti.",
        "Perdona que te moleste otra vez.", "¡Muchas gracias por tu tiempo!",
        "Nos mudamos el mes pasado y todo sigue en cajas.", "¡Menuda semana!",
        "Entre nosotros, nunca se me dio bien esto.", "Hoy solo traigo una cosita.",
        "Escribo desde el tren y la conexión falla.", "Feliz viernes :)", "Bueno, vamos allá.",
        "Mi hermano pequeño está a mi lado y quiere ver lo que sabes hacer.",
        "Me levanté a las 6 y todavía no he desayunado.", "De verdad, eres genial.",
        "Llueve a cántaros y las calles están llenas de paraguas.", "¿Puedo preguntarte algo?",
    ),
    "fr": (
        "Salut !", "Bien le bonjour de Bretagne.", "J'espère que vous vous portez bien.",
        "Comment s'est passée ta journée ?", "Les oiseaux du jardin chantent très fort ce printemps.",
        "Ma voisine m'a parlé de toi.", "Désolé de te déranger encore.", "Merci beaucoup pour ton temps !",
        "Nous avons déménagé le mois dernier et tout est encore en cartons.", "Quelle semaine !",
        "Entre nous, je n'ai jamais été doué pour ça.", "Aujourd'hui, juste une petite chose.",
        "J'écris depuis le train et la connexion saute.", "Bon vendredi :)", "Bon, allons-y.",
        "Mon petit frère est assis à côté de moi et veut voir ce que tu sais faire.",
        "Je me suis levé à 6 heures sans déjeuner.", "Franchement, tu es formidable.",
        "Il pleut des cordes et les rues sont pleines de parapluies.", "Puis-je te demander quelque chose ?",
    ),
    "it": (
        "Ciao!", "Buon pomeriggio a voi.", "Spero che vada tutto bene.", "Com'è andata la giornata?",
        "Gli uccelli in giardino cantano fortissimo.", "La mia vicina mi ha parlato di te.",
        "Scusa se ti disturbo ancora.", "Grazie mille per il tuo tempo!",
        "Ci siamo trasferiti il mese scorso e tutto è ancora negli scatoloni.", "Che settimana!",
        "Detto tra noi, non sono mai stato bravo in queste cose.", "Oggi solo una cosetta.",
        "Scrivo dal treno e la connessione salta.", "Buon venerdì :)", "Bene, cominciamo.",
        "Mio fratello è seduto accanto a me e vuole vedere cosa sai fare.",
        "Mi sono alzato alle 6 e non ho ancora fatto colazione.", "Sei davvero fantastica.",
        "Piove a dirotto e le strade sono piene di ombrelli.", "Posso chiederti una cosa?",
    ),
    "pl": (
        "Cześć!", "Serdecznie witam wszystkich.", "Mam nadzieję, że wszystko u ciebie dobrze.",
        "Jak minął ci dzień?", "Ptaki w ogrodzie śpiewają dziś bardzo głośno.", "Sąsiadka mi cię poleciła.",
        "Przepraszam, że znowu przeszkadzam.", "Bardzo dziękuję za twój czas!",
        "W zeszłym miesiącu się przeprowadziliśmy i wszystko stoi w kartonach.", "Ale tydzień!",
        "Między nami mówiąc, nigdy nie byłem w tym dobry.", "Dzisiaj tylko drobnostka.",
        "Piszę z pociągu i połączenie się rwie.", "Miłego piątku :)", "No dobrze, zaczynamy.",
        "Mój młodszy brat siedzi obok i chce zobaczyć, co potrafisz.",
        "Wstałem o 6 i jeszcze nic nie jadłem.", "Jesteś naprawdę świetna.",
        "Leje jak z cebra, a ulice są pełne parasoli.", "Czy mogę o coś zapytać?",
    ),
}  # fmt: skip
LENGTHS = (1, 2, 4, 8)


def openings() -> Iterator[tuple[str, int, str]]:
    """(Language, number of remarks, text): 6 languages x 4 lengths x 20 beginnings."""
    for language, remarks in REMARKS.items():
        for length in LENGTHS:
            for start in range(len(remarks)):
                said = [remarks[(start + number) % len(remarks)] for number in range(length)]
                yield language, length, " ".join(said)
