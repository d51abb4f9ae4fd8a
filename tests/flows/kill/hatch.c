/* Runs a command in the nest that REEF_NEST names, as if it ran here: the same words, environment, folder, descriptors,
   end and signals. Linked statically, so that nothing is preloaded into it. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nest.h"

extern char **environ;
static pid_t server;

static void pass_on(int signal)
{
	kill(server, signal);
}

static size_t tell(char *text, size_t at, char **words, size_t *count)
{
	for (; *words; words++) {
		size_t length = strlen(*words) + 1;
		/* What is hatched is no nest. */
		if (strncmp(*words, "REEF_NEST=", 10) == 0)
			continue;
		memcpy(text + at, *words, length);
		at += length;
		++*count;
	}
	return at;
}

int main(int argc, char **argv)
{
	static char text[1 << 20];
	int status, nest = socket(AF_UNIX, SOCK_STREAM, 0), passed[DESCRIPTORS_PASSED] = { 0, 1, 2 };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct asked asked = { 0, 0, 0 };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof passed)];
	} control = { .head = { CMSG_LEN(sizeof passed), SOL_SOCKET, SCM_RIGHTS } };
	struct iovec part = { &asked, sizeof asked };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	strncpy(address.sun_path, getenv("REEF_NEST"), sizeof address.sun_path - 1);
	memcpy(CMSG_DATA(&control.head), passed, sizeof passed);
	if (!getcwd(text, sizeof text / 2))
		return EXIT_BROKEN;
	asked.bytes = tell(text, strlen(text) + 1, argv, &asked.arguments);
	asked.bytes = tell(text, asked.bytes, environ, &asked.variables);
	if (argc < 1 || connect(nest, (struct sockaddr *)&address, sizeof address) != 0
	    || sendmsg(nest, &message, 0) != sizeof asked || write(nest, text, asked.bytes) != (ssize_t)asked.bytes
	    || read(nest, &server, sizeof server) != sizeof server) {
		perror("hatch");
		return EXIT_BROKEN;
	}
	close(1);
	signal(SIGTERM, pass_on);
	signal(SIGINT, pass_on);
	if (TEMP_FAILURE_RETRY(read(nest, &status, sizeof status)) != sizeof status)
		return EXIT_BROKEN;
	if (WIFSIGNALED(status)) {
		signal(WTERMSIG(status), SIG_DFL);
		raise(WTERMSIG(status));
	}
	return WEXITSTATUS(status);
}
