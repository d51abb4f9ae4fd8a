/* What a hatch sends to its nest: this, with its descriptors 0 to 2, then so many bytes: the folder, the words of the
   command, the variables, each with a null behind it. The nest answers with the server's process, then with how it ended. */
#include <stddef.h>

#define DESCRIPTORS_PASSED 3
#define EXIT_BROKEN 121

struct asked {
	size_t bytes, arguments, variables;
};
