/* Kills its process before the n-th call that makes something durable: preloaded into a server by kill.rs.
   KILL_AT: n, from 1; 0 = never. KILL_COUNT: file that always holds the number of calls so far. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_long calls;
static long kill_at;
static int count_file = -1;

__attribute__((constructor)) static void begin(void)
{
	const char *at = getenv("KILL_AT"), *count = getenv("KILL_COUNT");
	kill_at = at ? atol(at) : 0;
	if (count)
		count_file = open(count, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	/* The server's own children are not meant. */
	unsetenv("LD_PRELOAD");
	unsetenv("KILL_AT");
	unsetenv("KILL_COUNT");
}

static void point(void)
{
	long call = atomic_fetch_add(&calls, 1) + 1;
	if (call == kill_at)
		kill(getpid(), SIGKILL);
	if (count_file >= 0) {
		char text[32];
		int length = snprintf(text, sizeof text, "%ld\n", call);
		if (pwrite(count_file, text, length, 0) != length)
			abort();
	}
}

#define WRAP(name, parameters, arguments)                                         \
	int name parameters                                                       \
	{                                                                         \
		static int(*_Atomic real) parameters;                             \
		if (!real)                                                        \
			real = (int(*) parameters)dlsym(RTLD_NEXT, #name);        \
		point();                                                          \
		return real arguments;                                            \
	}

WRAP(fsync, (int fd), (fd))
WRAP(fdatasync, (int fd), (fd))
WRAP(rename, (const char *from, const char *to), (from, to))
WRAP(renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
WRAP(renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags))
WRAP(link, (const char *from, const char *to), (from, to))
WRAP(linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
