"""Word lists that the generators draw from. Nothing here is random."""

import hashlib

NAMES = """Mia Tom Lily Ben Anna Jack Emma Sam Ella Max Ruby Leo Nora Finn Zoe Noah Ivy Hugo Clara Otto Maya Paul Rosa
Theo Ada Luke Eva Carl Jane Peter Lucy Adam Kate Oscar Nina Simon Alice Henry Sara David Laura Felix Julia Oliver Grace
Daniel Hannah Martin Sophie George Amy Robert Helen Thomas Marie Victor Olga Walter Irene Arthur Dora Ralph Edith Colin
Tara Owen Megan Dylan Freya Logan Isla Ethan Chloe Jacob Molly Aaron Daisy Nathan Holly Ryan Penny Kevin Wendy Brian
Tina Frank Lena Albert Vera Stefan Greta Ivan Elena Marco Bianca Pedro Carmen Yusuf Leila Omar Amina Raj Priya Kenji Yuki
Wei Lin Kofi Ama Juan""".split()
GIRLS = set("""Mia Lily Anna Emma Ella Ruby Nora Zoe Ivy Clara Maya Rosa Ada Eva Jane Lucy Kate Nina Alice Sara Laura
Julia Grace Hannah Sophie Amy Helen Marie Olga Irene Dora Edith Tara Megan Freya Isla Chloe Molly Daisy Holly Penny Wendy
Tina Lena Vera Greta Elena Bianca Carmen Leila Amina Priya Yuki Lin Ama""".split())

ANIMALS = """fox rabbit bear mouse owl frog duck cat dog horse goat sheep cow pig hen wolf deer squirrel hedgehog badger
otter beaver turtle snail crow swan goose lion tiger elephant monkey zebra camel seal whale penguin parrot bee ant spider
donkey kitten puppy lamb pony robin raven mole""".split()

CITIES = """Paris London Berlin Madrid Rome Vienna Oslo Dublin Lisbon Athens Prague Warsaw Zurich Geneva Milan Munich
Hamburg Lyon Porto Seville Naples Turin Brussels Helsinki Stockholm Copenhagen Bergen Glasgow Leeds Bristol Oxford
Cambridge York Boston Chicago Denver Dallas Austin Seattle Portland Miami Atlanta Houston Phoenix Detroit Toronto Montreal
Ottawa Vancouver Calgary Quebec Havana Lima Bogota Quito Santiago Cairo Tunis Lagos Accra Nairobi Kampala Dakar Tokyo Kyoto
Osaka Seoul Beijing Shanghai Hanoi Bangkok Manila Jakarta Delhi Mumbai Chennai Karachi Tehran Baghdad Ankara Istanbul
Moscow Kiev Riga Tallinn Vilnius Sofia Belgrade Zagreb Budapest Sydney Melbourne Perth Brisbane Auckland Wellington
Honolulu Reykjavik""".split()

COLOURS = "red green blue yellow orange purple pink brown black white gray".split()
FOODS = """apples pears plums cherries carrots potatoes onions cakes biscuits eggs nuts lemons oranges peaches grapes
beans tomatoes mushrooms pies loaves berries figs melons buns""".split()
THINGS = """books coins stamps marbles pencils shells stones cards buttons balls hats cups plates boxes keys flowers
toys kites bells ribbons""".split()
PLACES = """forest village garden river lake hill mountain farm castle beach island meadow town cave mill harbour barn
orchard valley market""".split()
OBJECTS = """ball kite lantern key boat book drum basket map ring bell hat coat bottle feather stone box rope candle
mirror bicycle cart umbrella flute spoon clock wheel ladder blanket scarf""".split()
JOBS = """baker farmer teacher doctor sailor painter gardener tailor miller fisherman cook singer writer driver nurse
carpenter pilot shepherd""".split()

OPPOSITES = dict(p.split("/") for p in """big/small hot/cold up/down left/right day/night fast/slow happy/sad old/new
high/low long/short wet/dry hard/soft light/dark open/closed full/empty rich/poor early/late near/far strong/weak
thick/thin clean/dirty loud/quiet true/false good/bad black/white young/old first/last inside/outside above/below
sweet/sour heavy/light deep/shallow wide/narrow brave/afraid begin/end give/take push/pull buy/sell win/lose
find/lose love/hate laugh/cry come/go in/out on/off yes/no before/after always/never everything/nothing""".split())

PLURALS = {w: w + "s" for w in """cat dog book tree house car apple river hand bird ship door cup hat king queen girl boy
star cloud flower stone road horse cow duck bear table chair window garden ball egg cake farm hill lake boat bell key
ring""".split()} | dict(p.split("/") for p in """fox/foxes box/boxes bus/buses dish/dishes glass/glasses church/churches
peach/peaches baby/babies city/cities story/stories lady/ladies berry/berries pony/ponies leaf/leaves wolf/wolves
knife/knives loaf/loaves half/halves life/lives mouse/mice goose/geese foot/feet tooth/teeth man/men woman/women
child/children ox/oxen sheep/sheep fish/fish deer/deer tomato/tomatoes potato/potatoes hero/heroes""".split())

SPELLING = sorted(set(ANIMALS) | set(COLOURS) | set(OBJECTS) | set(PLACES) | set(JOBS) | set(OPPOSITES)
                  | set(OPPOSITES.values()) | set(PLURALS) | set("""apple pear plum cherry carrot potato onion lemon bread
butter cheese milk water sugar salt honey tea coffee juice soup rice table chair window door roof floor wall stairs kitchen
bedroom school church street bridge road train ship plane wagon paper pencil letter picture music song dance game winter
summer spring autumn snow rain wind storm thunder cloud sun moon star planet earth fire smoke ice grass leaf root branch
flower seed tree sister brother mother father uncle aunt friend king queen prince princess knight dragon giant witch
silver gold iron copper glass wood stone sand monday tuesday wednesday thursday friday saturday sunday january february
march april june july august september october november december morning evening night today tomorrow yesterday hello
goodbye please thank sorry pebble model letter number seven eight eleven twelve thirteen twenty hundred thousand head
hand foot knee nose mouth tooth finger shoulder heart hair shirt dress shoe glove button pocket banana strawberry
butterfly elephant umbrella computer telephone garden rainbow mountain""".split()))

CAPITALS = dict(p.split("/") for p in """France/Paris Germany/Berlin Spain/Madrid Italy/Rome Austria/Vienna Norway/Oslo
Ireland/Dublin Portugal/Lisbon Greece/Athens Poland/Warsaw England/London Belgium/Brussels Finland/Helsinki
Sweden/Stockholm Denmark/Copenhagen Canada/Ottawa Cuba/Havana Peru/Lima Egypt/Cairo Kenya/Nairobi Japan/Tokyo China/Beijing
Vietnam/Hanoi Thailand/Bangkok India/Delhi Iran/Tehran Iraq/Baghdad Turkey/Ankara Russia/Moscow Latvia/Riga Estonia/Tallinn
Hungary/Budapest Croatia/Zagreb Bulgaria/Sofia Chile/Santiago Iceland/Reykjavik Ghana/Accra Senegal/Dakar""".split())
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()


def reserved(key: str) -> bool:
    """One key in twenty belongs to the held-out sets. Training skips those; held-out sets use no others."""
    digest = hashlib.blake2b(key.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % 20 == 0


def article(word: str) -> str:
    """The word with "a" or "an" before it."""
    return ("an " if word[0] in "aeiou" else "a ") + word


def joined(items: list[str]) -> str:
    """A list in words: "a", "a and b", "a, b and c"."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
