/* SPDX-License-Identifier: Apache-2.0
 *
 * Two threads at a time in transactions on a volume that is mounted as a file.
 *
 *     threads FILE           counts, and checks what threads may see of each other
 *     threads FILE die       begins a transaction, says so, and waits to be killed
 */
#include "../ithaca_ioctl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNTS 50
/* A block of 4096 bytes that both threads count in, and one for what is released. */
#define COUNTER_AT 0
#define RELEASED_AT 8192

static int disk;
static unsigned again[2];

#define CHECK(condition)                                                                                        \
	do {                                                                                                    \
		if (!(condition)) {                                                                             \
			fprintf(stderr, "threads.c:%d: %s: %s\n", __LINE__, #condition, strerror(errno));       \
			exit(1);                                                                                \
		}                                                                                               \
	} while (0)

static void begin(void)
{
	const struct ithaca_begin options = { ITHACA_BEGIN_AS_VOLUME, ITHACA_BEGIN_STABLE };
	CHECK(ioctl(disk, ITHACA_BEGIN, &options) == 0);
}

/* Adds one to the counter, as often as it takes until each time is a commit. */
static void *count(void *number)
{
	for (int nth = 0; nth < COUNTS; nth++) {
		uint64_t version, value;
		int result;
		do {
			begin();
			CHECK(pread(disk, &value, sizeof value, COUNTER_AT) == sizeof value);
			value++;
			CHECK(pwrite(disk, &value, sizeof value, COUNTER_AT) == sizeof value);
			result = ioctl(disk, ITHACA_END, &version);
			CHECK(result == 0 || errno == EAGAIN);
			again[*(int *)number] += result != 0;
		} while (result != 0);
	}
	return NULL;
}

/* Goes on with what another thread has released. */
static void *take_over(void *released)
{
	char text[8] = "";
	CHECK(pread(disk, text, sizeof text, RELEASED_AT) == sizeof text && text[0] == 0);
	CHECK(ioctl(disk, ITHACA_TAKE_OVER, &((struct ithaca_released *)released)->handle) == 0);
	CHECK(pread(disk, text, sizeof text, RELEASED_AT) == sizeof text && strcmp(text, "handed") == 0);
	uint64_t version;
	CHECK(ioctl(disk, ITHACA_END, &version) == 0 && version != ITHACA_END_NO_VERSION);
	return NULL;
}

/* Begins, writes, and ends without ending it. */
static void *die(void *unused)
{
	(void)unused;
	begin();
	CHECK(pwrite(disk, "dead", 5, RELEASED_AT) == 5);
	return NULL;
}

static void run(void *(*first)(void *), void *first_of, void *(*second)(void *), void *second_of)
{
	pthread_t threads[2];
	CHECK(pthread_create(&threads[0], NULL, first, first_of) == 0);
	if (second != NULL)
		CHECK(pthread_create(&threads[1], NULL, second, second_of) == 0);
	CHECK(pthread_join(threads[0], NULL) == 0);
	if (second != NULL)
		CHECK(pthread_join(threads[1], NULL) == 0);
}

int main(int arguments, char **argument)
{
	int numbers[2] = { 0, 1 };
	uint64_t value, version;
	char text[8];
	CHECK(arguments >= 2 && (disk = open(argument[1], O_RDWR)) >= 0);
	if (arguments == 3) {
		begin();
		CHECK(pwrite(disk, "killed", 7, RELEASED_AT) == 7);
		puts("begun");
		fflush(stdout);
		pause();
	}

	run(count, &numbers[0], count, &numbers[1]);
	CHECK(pread(disk, &value, sizeof value, COUNTER_AT) == sizeof value && value == 2 * COUNTS);

	/* Of a transaction of this thread another one sees nothing, until it has it. */
	struct ithaca_released released = { .heir = ITHACA_HEIR_USER };
	begin();
	CHECK(pwrite(disk, "handed", 7, RELEASED_AT) == 7);
	CHECK(ioctl(disk, ITHACA_RELEASE, &released) == 0);
	run(take_over, &released, NULL, NULL);
	CHECK(pread(disk, text, sizeof text, RELEASED_AT) == sizeof text && strcmp(text, "handed") == 0);

	/* A thread that ends takes its transaction along. */
	run(die, NULL, NULL, NULL);
	CHECK(pread(disk, text, sizeof text, RELEASED_AT) == sizeof text && strcmp(text, "handed") == 0);

	/* Marks, and what cannot be. */
	char block[4096];
	const struct ithaca_accessed accessed = { .block = 2, .first = 0, .end = 64 };
	const uint64_t cached = 2;
	begin();
	CHECK(pread(disk, block, sizeof block, RELEASED_AT) == sizeof block);
	CHECK(ioctl(disk, ITHACA_MARK_ACCESSED, &accessed) == 0);
	CHECK(ioctl(disk, ITHACA_PLEASE_CACHE, &cached) == 0);
	CHECK(ioctl(disk, ITHACA_ABORT) == 0);
	CHECK(ioctl(disk, ITHACA_END, &version) == -1 && errno == EINVAL);
	CHECK(ioctl(disk, _IO(0xB1, 99)) == -1 && errno == ENOTTY);
	CHECK(fsync(disk) == 0);
	printf("counted to %" PRIu64 ", %u times again\n", value, again[0] + again[1]);
	return 0;
}
