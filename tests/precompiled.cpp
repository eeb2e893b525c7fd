// Gives the precompiled header of the tests a source to be built with.
