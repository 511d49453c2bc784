/* Opens a library, by the path it is given, and lets it work. */
#include "check.h"

#include <dlfcn.h>

int main(int count, char **arguments) {
    for (int flags = 0; flags < 2; flags++) {
        void *library = dlopen(arguments[1], RTLD_NOW | (flags ? RTLD_GLOBAL : RTLD_LOCAL));
        CHECK(library != NULL);
        void (*work)(void) = (void (*)(void))dlsym(library, "work");
        CHECK(work != NULL);
        work();
        CHECK(dlclose(library) == 0);
    }
    /* What the shim looks up must not be what the program is told of its own failures. */
    CHECK(dlsym(RTLD_DEFAULT, "nothing_has_this_name") == NULL && dlerror() != NULL);
    CHECK(dlerror() == NULL);
    return 0;
}
