"""The words friendly names are made of: short, kind, easy to say on the phone."""

_ADJECTIVES = """
able agile airy alert amber ample apt ardent awake azure balmy bold brave breezy bright brisk
bronze bubbly calm candid caring cheery chipper civil clever coral cosmic cosy cozy crafty crisp
curious dapper daring dashing deft dewy droll eager early earnest easy elated epic fabled fair
famous fancy fearless festive fine fleet fluent fluffy fond frank free fresh frosty gallant
gentle gifted giving glad gleeful golden good grand great groovy happy hardy hasty hazel heroic
honest hopeful humble indigo ivory jaunty jazzy jolly jovial joyful just keen kind kindly lively
loyal lucid lucky lunar magic mellow merry mighty mild mint misty modest mossy neat nimble noble
open opal patient peachy perky placid playful plucky plush poised polite prime proud pure quick
quiet rapid rare ready regal robust rosy royal ruby rustic sage sandy savvy serene sharp shiny
silent silken silver sincere sleek smart smooth snappy snowy snug social solar solid spry stable
steady stellar still stoic stout sturdy subtle sunny super supple sure sweet swift tactful tame
tender thrifty tidy tranquil trim true trusty upbeat valiant velvet vibrant vivid warm wary
whole willing wise witty woolly worthy young zany zesty zippy
"""

_ANIMALS = """
adder akita albatross alpaca anchovy ant antelope ape avocet badger barbel bass bat beagle bear
beaver bee beetle bison boar bobcat bonobo booby bream buffalo bulbul bunting buzzard camel
canary capybara caracal cardinal caribou carp cat caterpillar catfish chamois cheetah chinchilla
chough cicada civet clam cobra cod condor coot cormorant cougar coyote crab crane cricket crow
cuckoo curlew dace deer dingo dipper dog dolphin donkey dormouse dove dragonfly duck dugong
dunlin eagle eel egret eider eland elephant elk emu ermine falcon ferret finch firefly flamingo
flounder fox frog gannet gazelle gecko gerbil gibbon giraffe gnu goat godwit goldfinch goose
gopher goshawk grebe grouse guanaco gull guppy haddock halibut hamster hare harrier hawk
hedgehog heron herring hippo hoopoe hornet horse husky ibex ibis iguana impala jackal jackdaw
jaguar jay jerboa kestrel kingfisher kite kiwi koala kudu lamb lapwing lark lemming lemur
leopard linnet lion lizard llama lobster loon lynx macaw mackerel magpie mallard mammoth manatee
marlin marmot marten martin meerkat merlin minnow mole mongoose moose moth mouse mule narwhal
newt nightjar ocelot octopus okapi orca oriole oryx osprey ostrich otter owl ox oyster panda
panther parrot partridge peacock pelican penguin perch petrel pheasant pigeon pike pipit plaice
plover polecat pony porpoise possum puffin puma quail rabbit raccoon raven ray reindeer robin
rook sable salmon sandpiper sardine seal serval shark sheep shrew shrike siskin skua skunk
skylark sloth snail snipe sole sparrow squid squirrel starling stingray stoat stork swallow swan
swift tapir tern thrush tiger toad tortoise toucan trout tuna turbot turtle viper vole vulture
wagtail wallaby walrus warbler weasel whale whimbrel wigeon wolf wombat woodcock wren yak zebra
"""

ADJECTIVES = tuple(_ADJECTIVES.split())
ANIMALS = tuple(_ANIMALS.split())
