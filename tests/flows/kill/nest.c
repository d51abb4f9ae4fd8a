/* Servers without the quarter of a second of a core that libtorch takes to be loaded: where REEF_NEST names a socket, a
   program with this library and kill_at.c preloaded becomes a nest, which forks where its main would begin, once for
   each hatch.c that connects. What is forked has the words, the environment, the folder and the three descriptors of
   the hatch; it is killed when the hatch is gone, and how it ended is told to the hatch. Only scripts/kill-table.sh
   uses it: it halves what tens of thousands of servers cost. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nest.h"

typedef int start_main(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

extern char **environ;
void kill_at_begin(void);

static void must(int holds)
{
	if (!holds)
		_exit(EXIT_BROKEN);
}

static void read_all(int fd, void *into, size_t length)
{
	for (size_t got = 0; got < length;) {
		ssize_t more = read(fd, (char *)into + got, length - got);
		must(more > 0);
		got += more;
	}
}

/* The words that the hatch sent, as a kernel lays them out: arguments, null, environment, null. */
static char **words(int hatch, struct asked *asked)
{
	char *text = malloc(asked->bytes);
	char **words = calloc(asked->arguments + asked->variables + 2, sizeof *words);
	read_all(hatch, text, asked->bytes);
	must(chdir(text) == 0);
	for (size_t at = 0; at < asked->arguments + asked->variables; at++) {
		text += strlen(text) + 1;
		words[at + (at >= asked->arguments)] = text;
	}
	return words;
}

/* Takes the request and the descriptors of a hatch. */
static struct asked take(int hatch, int *descriptors)
{
	struct asked asked;
	char room[CMSG_SPACE(DESCRIPTORS_PASSED * sizeof(int))];
	struct iovec part = { &asked, sizeof asked };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room };
	must(recvmsg(hatch, &message, 0) == sizeof asked && CMSG_FIRSTHDR(&message));
	memcpy(descriptors, CMSG_DATA(CMSG_FIRSTHDR(&message)), DESCRIPTORS_PASSED * sizeof(int));
	return asked;
}

/* Waits for the end of the server, or of the hatch. */
static void watch(int hatch, pid_t server)
{
	int status, ended = syscall(SYS_pidfd_open, server, 0);
	struct pollfd both[] = { { ended, POLLIN, 0 }, { hatch, POLLIN, 0 } };
	must(ended >= 0 && write(hatch, &server, sizeof server) == sizeof server);
	poll(both, 2, -1);
	if (!both[0].revents)
		kill(server, SIGKILL);
	must(waitpid(server, &status, 0) == server);
	_exit(write(hatch, &status, sizeof status) == sizeof status ? 0 : EXIT_BROKEN);
}

int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
		      void (*linker)(void), void *stack)
{
	start_main *real = (start_main *)dlsym(RTLD_NEXT, "__libc_start_main");
	const char *path = getenv("REEF_NEST");
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int hatch, descriptors[DESCRIPTORS_PASSED], nest = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (!path)
		return real(main, argc, argv, init, fini, linker, stack);
	strncpy(address.sun_path, path, sizeof address.sun_path - 1);
	must(bind(nest, (struct sockaddr *)&address, sizeof address) == 0 && listen(nest, 64) == 0);
	signal(SIGCHLD, SIG_IGN);
	while ((hatch = accept4(nest, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
		if (fork()) {
			close(hatch);
			continue;
		}
		signal(SIGCHLD, SIG_DFL);
		struct asked asked = take(hatch, descriptors);
		argv = words(hatch, &asked);
		pid_t server = fork();
		must(server >= 0);
		for (int at = 0; at < DESCRIPTORS_PASSED; at++) {
			if (!server)
				dup2(descriptors[at], at);
			close(descriptors[at]);
		}
		if (server)
			watch(hatch, server);
		environ = argv + asked.arguments + 1;
		kill_at_begin();
		return real(main, asked.arguments, argv, init, fini, linker, stack);
	}
	_exit(EXIT_BROKEN);
}
