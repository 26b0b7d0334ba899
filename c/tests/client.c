/* SPDX-License-Identifier: Apache-2.0
 *
 * What the library promises, against a real server: client SOCKET, or, with all data through the socket, client SOCKET without-memory; or of one
 * that is crowded, client SOCKET crowd. Prints `ok` and ends with 0, or says which line failed.
 */
#define _POSIX_C_SOURCE 200809L

#include "check.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *path;
static int without_memory;

#define EXPECT(call, status) expect((call), (status), #call, __LINE__)

static void expect(int found, int status, const char *what, int line)
{
	if (found == status)
		return;
	fprintf(stderr, "line %d: %s is %d, expected %d: %s\n", line, what, found, status, ithaca_last_error(volume));
	exit(1);
}

static struct ithaca_volume *another(void)
{
	struct ithaca_volume *made;
	EXPECT(without_memory ? ithaca_open_without_memory(path, &made) : ithaca_open(path, &made), ITHACA_OK);
	return made;
}

static struct ithaca_tx *begin(struct ithaca_volume *of)
{
	struct ithaca_tx *tx;
	EXPECT(ithaca_begin(of, ITHACA_AS_VOLUME, &tx), ITHACA_OK);
	return tx;
}

static unsigned char block[4 * ITHACA_BLOCK_BYTES];

/* Fills a block with a number, in `block`. */
static void *filled(int with)
{
	memset(block, with, ITHACA_BLOCK_BYTES);
	return block;
}

/* The first byte of a block, as it is now. */
static int first_byte(uint64_t of)
{
	unsigned char data[ITHACA_BLOCK_BYTES];
	EXPECT(ithaca_read(volume, of, data, sizeof data), ITHACA_OK);
	return data[0];
}

/* The volume has a region `part` of 8 blocks, the first ones. */
static void a_region_is_reached_alone(void)
{
	struct ithaca_volume *part = another();
	uint64_t blocks;
	EXPECT(ithaca_open_region(part, "other", &blocks), ITHACA_NO_SUCH_SNAPSHOT);
	EXPECT(ithaca_open_region(part, "part", &blocks), ITHACA_OK);
	CHECK(blocks == 8);
	EXPECT(ithaca_write(part, 7, block, ITHACA_BLOCK_BYTES, 0), ITHACA_OK);
	EXPECT(ithaca_write(part, 8, block, ITHACA_BLOCK_BYTES, 0), ITHACA_OUT_OF_RANGE);
	EXPECT(ithaca_discard(part, 7, 1, 0), ITHACA_OK);
	ithaca_close(part);
}

static void plain_reads_and_writes(void)
{
	struct ithaca_info info;
	uint64_t blocks;
	EXPECT(ithaca_info(volume, &info), ITHACA_OK);
	blocks = info.blocks;
	CHECK(blocks == 2048 && info.floor <= info.version);
	for (size_t at = 0; at < sizeof block; at++)
		block[at] = (unsigned char)(at * 7 + at / ITHACA_BLOCK_BYTES);
	EXPECT(ithaca_write(volume, 1, block, sizeof block, 0), ITHACA_OK);
	EXPECT(ithaca_flush(volume), ITHACA_OK);
	unsigned char *back = malloc(sizeof block);
	CHECK(back);
	EXPECT(ithaca_read(volume, 1, back, sizeof block), ITHACA_OK);
	CHECK(memcmp(back, block, sizeof block) == 0);
	free(back);
	EXPECT(ithaca_please_cache(volume, 1), ITHACA_OK);
	EXPECT(ithaca_discard(volume, 1, 4, 1), ITHACA_OK);
	CHECK(first_byte(2) == 0);
	EXPECT(ithaca_read(volume, blocks, block, ITHACA_BLOCK_BYTES), ITHACA_OUT_OF_RANGE);
	CHECK(strlen(ithaca_last_error(volume)) > 0);
	EXPECT(ithaca_read(volume, 0, block, 100), ITHACA_REQUEST);
	EXPECT(ithaca_write(volume, 0, block, 0, 1), ITHACA_REQUEST);
	EXPECT(ithaca_info(volume, &info), ITHACA_OK);
	CHECK(info.version >= 2);
}

static void the_largest_read_and_write_are_whole(void)
{
	size_t size = (size_t)ITHACA_BLOCKS_MAX * ITHACA_BLOCK_BYTES;
	unsigned char *data = malloc(size + ITHACA_BLOCK_BYTES), *back = malloc(size);
	CHECK(data && back);
	for (size_t at = 0; at < size; at++)
		data[at] = (unsigned char)(at / 13);
	EXPECT(ithaca_write(volume, 512, data, size, 0), ITHACA_OK);
	EXPECT(ithaca_write(volume, 0, data, size + ITHACA_BLOCK_BYTES, 0), ITHACA_REQUEST);
	/* Nothing of it is left where the next one is read. */
	EXPECT(ithaca_read(volume, 0, back, ITHACA_BLOCK_BYTES), ITHACA_OK);
	EXPECT(ithaca_read(volume, 512, back, size), ITHACA_OK);
	CHECK(memcmp(back, data, size) == 0);
	EXPECT(ithaca_discard(volume, 512, ITHACA_BLOCKS_MAX, 0), ITHACA_OK);
	free(data);
	free(back);
}

static void a_transaction_is_all_or_nothing(void)
{
	uint64_t version = 0;
	unsigned char part[16];
	struct ithaca_tx *tx = begin(volume);
	EXPECT(ithaca_tx_write(tx, 10, filled(1), ITHACA_BLOCK_BYTES), ITHACA_OK);
	EXPECT(ithaca_tx_write(tx, 11, filled(2), ITHACA_BLOCK_BYTES), ITHACA_OK);
	EXPECT(ithaca_tx_read(tx, 11, block, ITHACA_BLOCK_BYTES), ITHACA_OK);
	CHECK(block[0] == 2);
	CHECK(first_byte(10) == 0);
	EXPECT(ithaca_commit(tx, &version), ITHACA_OK);
	CHECK(version > 0 && version != ITHACA_NO_VERSION);
	CHECK(first_byte(10) == 1 && first_byte(11) == 2);
	tx = begin(volume);
	EXPECT(ithaca_tx_write_part(tx, 10, 100, "part", 4), ITHACA_OK);
	EXPECT(ithaca_tx_read_part(tx, 10, 96, part, sizeof part), ITHACA_OK);
	CHECK(memcmp(part, "\1\1\1\1part\1\1\1\1\1\1\1\1", sizeof part) == 0);
	EXPECT(ithaca_tx_read_part(tx, 10, 4090, part, sizeof part), ITHACA_REQUEST);
	EXPECT(ithaca_abort(tx), ITHACA_OK);
	EXPECT(ithaca_read(volume, 10, block, ITHACA_BLOCK_BYTES), ITHACA_OK);
	CHECK(block[100] == 1);
}

static void conflicts_are_found_and_marks_narrow_them(void)
{
	struct ithaca_volume *other = another();
	struct ithaca_tx *one = begin(volume), *two = begin(other);
	EXPECT(ithaca_tx_read(one, 10, block, ITHACA_BLOCK_BYTES), ITHACA_OK);
	EXPECT(ithaca_tx_write(one, 20, filled(1), ITHACA_BLOCK_BYTES), ITHACA_OK);
	EXPECT(ithaca_tx_write(two, 10, filled(5), ITHACA_BLOCK_BYTES), ITHACA_OK);
	EXPECT(ithaca_commit(two, NULL), ITHACA_OK);
	EXPECT(ithaca_commit(one, NULL), ITHACA_CONFLICT);
	CHECK(strstr(ithaca_last_error(volume), "block 10"));
	CHECK(first_byte(20) == 0);
	for (int same = 0; same < 2; same++) {
		one = begin(volume), two = begin(other);
		EXPECT(ithaca_tx_read(one, 10, block, ITHACA_BLOCK_BYTES), ITHACA_OK);
		EXPECT(ithaca_mark_accessed(one, 10, same ? 64 : 0, 16), ITHACA_OK);
		EXPECT(ithaca_tx_write_part(two, 10, 64, "0123456789abcdef", 16), ITHACA_OK);
		EXPECT(ithaca_commit(two, NULL), ITHACA_OK);
		EXPECT(ithaca_tx_write(one, 21, filled(1), ITHACA_BLOCK_BYTES), ITHACA_OK);
		EXPECT(ithaca_commit(one, NULL), same ? ITHACA_CONFLICT : ITHACA_OK);
	}
	one = begin(volume);
	EXPECT(ithaca_mark_accessed(one, 33, 0, 16), ITHACA_NOT_ACCESSED);
	EXPECT(ithaca_abort(one), ITHACA_OK);
	ithaca_close(other);
}

static void nested_ends_are_the_outer_ones(void)
{
	uint64_t version = 0;
	struct ithaca_tx *tx = begin(volume);
	EXPECT(ithaca_begin_nested(tx), ITHACA_OK);
	EXPECT(ithaca_tx_write(tx, 30, filled(3), ITHACA_BLOCK_BYTES), ITHACA_OK);
	EXPECT(ithaca_commit(tx, &version), ITHACA_OK);
	CHECK(version == ITHACA_NO_VERSION && first_byte(30) == 0 && ithaca_depth(tx) == 0);
	EXPECT(ithaca_commit(tx, &version), ITHACA_OK);
	CHECK(version != ITHACA_NO_VERSION && first_byte(30) == 3);
	tx = begin(volume);
	EXPECT(ithaca_begin_nested(tx), ITHACA_OK);
	EXPECT(ithaca_abort(tx), ITHACA_OK);
	EXPECT(ithaca_tx_write(tx, 30, filled(4), ITHACA_BLOCK_BYTES), ITHACA_DOOMED);
	EXPECT(ithaca_commit(tx, NULL), ITHACA_DOOMED);
}

/* `tx` is there until the one ends that its depth does not count; that of a transaction that is taken over is what it was. */
static void the_depth_says_which_end_frees(void)
{
	struct ithaca_handle handle;
	struct ithaca_tx *tx = begin(volume);
	CHECK(ithaca_depth(tx) == 0);
	EXPECT(ithaca_begin_nested(tx), ITHACA_OK);
	EXPECT(ithaca_begin_nested(tx), ITHACA_OK);
	CHECK(ithaca_depth(tx) == 2);
	EXPECT(ithaca_release(tx, 0, &handle), ITHACA_OK);
	EXPECT(ithaca_takeover(volume, &handle, &tx), ITHACA_OK);
	CHECK(ithaca_depth(tx) == 2);
	EXPECT(ithaca_commit(tx, NULL), ITHACA_OK);
	EXPECT(ithaca_abort(tx), ITHACA_OK);
	CHECK(ithaca_depth(tx) == 0);
	EXPECT(ithaca_begin_nested(tx), ITHACA_DOOMED);
	CHECK(ithaca_depth(tx) == 0);
	EXPECT(ithaca_abort(tx), ITHACA_OK);
}

/* A write to a transaction that this library refuses by itself. */
static void is_refused_a_write(struct ithaca_tx *tx, int which)
{
	static unsigned char many[(ITHACA_BLOCKS_MAX + 1) * ITHACA_BLOCK_BYTES];
	EXPECT(ithaca_tx_write(tx, 35, filled(5), ITHACA_BLOCK_BYTES), ITHACA_OK);
	if (which == 0)
		EXPECT(ithaca_tx_write(tx, 36, block, 100), ITHACA_REQUEST);
	else if (which == 1)
		EXPECT(ithaca_tx_write(tx, 36, many, sizeof many), ITHACA_REQUEST);
	else
		EXPECT(ithaca_tx_write_part(tx, 36, 4090, block, 7), ITHACA_REQUEST);
	CHECK(strlen(ithaca_last_error(volume)) > 0);
	EXPECT(ithaca_tx_read(tx, 35, block, ITHACA_BLOCK_BYTES), ITHACA_OK);
}

static void a_transaction_that_lacks_a_write_does_not_commit(void)
{
	struct ithaca_handle handle;
	for (int which = 0; which < 3; which++) {
		struct ithaca_tx *tx = begin(volume);
		is_refused_a_write(tx, which);
		EXPECT(ithaca_commit(tx, NULL), ITHACA_DOOMED);
		tx = begin(volume);
		EXPECT(ithaca_begin_nested(tx), ITHACA_OK);
		is_refused_a_write(tx, which);
		EXPECT(ithaca_commit(tx, NULL), ITHACA_OK);
		EXPECT(ithaca_commit(tx, NULL), ITHACA_DOOMED);
		/* Whoever goes on with it does not know. */
		tx = begin(volume);
		is_refused_a_write(tx, which);
		EXPECT(ithaca_release(tx, 0, &handle), ITHACA_OK);
		EXPECT(ithaca_takeover(volume, &handle, &tx), ITHACA_OK);
		EXPECT(ithaca_commit(tx, NULL), ITHACA_DOOMED);
		tx = begin(volume);
		EXPECT(ithaca_tx_read(tx, 35, block, 100), ITHACA_REQUEST);
		EXPECT(ithaca_commit(tx, NULL), ITHACA_OK);
	}
	CHECK(first_byte(35) == 0);
}

/* What another process does with a transaction that was released, or with one of its own. */
static int in_another_process(int (*work)(const struct ithaca_handle *), const struct ithaca_handle *handle)
{
	int status = 0;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(work(handle));
	CHECK(waitpid(child, &status, 0) == child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int commits_it(const struct ithaca_handle *handle)
{
	struct ithaca_tx *tx;
	volume = another();
	EXPECT(ithaca_takeover(volume, handle, &tx), ITHACA_OK);
	EXPECT(ithaca_tx_read(tx, 40, block, ITHACA_BLOCK_BYTES), ITHACA_OK);
	CHECK(block[0] == 6);
	EXPECT(ithaca_tx_write(tx, 41, filled(7), ITHACA_BLOCK_BYTES), ITHACA_OK);
	EXPECT(ithaca_commit(tx, NULL), ITHACA_OK);
	return 0;
}

static int leaves_one_behind(const struct ithaca_handle *handle)
{
	(void)handle;
	volume = another();
	EXPECT(ithaca_tx_write(begin(volume), 42, filled(8), ITHACA_BLOCK_BYTES), ITHACA_OK);
	/* Ends without a word. */
	_exit(0);
}

static void other_processes_take_transactions_over(void)
{
	struct ithaca_handle handle;
	struct ithaca_tx *tx = begin(volume);
	EXPECT(ithaca_tx_write(tx, 40, filled(6), ITHACA_BLOCK_BYTES), ITHACA_OK);
	EXPECT(ithaca_release(tx, 0, &handle), ITHACA_OK);
	CHECK(in_another_process(commits_it, &handle) == 0);
	CHECK(first_byte(40) == 6 && first_byte(41) == 7);
	EXPECT(ithaca_takeover(volume, &handle, &tx), ITHACA_NO_SUCH_HANDLE);
	CHECK(!tx);
	CHECK(in_another_process(leaves_one_behind, NULL) == 0);
	CHECK(first_byte(42) == 0);
}

static void a_child_that_closes_what_it_was_born_with_ends_nothing(void)
{
	struct ithaca_tx *tx = begin(volume);
	int status;
	EXPECT(ithaca_tx_write(tx, 90, filled(1), ITHACA_BLOCK_BYTES), ITHACA_OK);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		ithaca_close(volume);
		volume = another();
		EXPECT(ithaca_write(volume, 91, filled(2), ITHACA_BLOCK_BYTES, 1), ITHACA_OK);
		CHECK(first_byte(90) == 0);
		ithaca_close(volume);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	EXPECT(ithaca_commit(tx, NULL), ITHACA_OK);
	CHECK(first_byte(90) == 1 && first_byte(91) == 2);
}

static void what_exceeds_a_limit_is_refused(void)
{
	struct ithaca_tx *tx = begin(volume);
	uint64_t count = 0;
	while (count < 1000 && ithaca_tx_write(tx, count, filled(1), ITHACA_BLOCK_BYTES) == ITHACA_OK)
		count++;
	/* Small volumes have small segments, which have room for fewer. */
	CHECK(count > 200 && count <= 256);
	EXPECT(ithaca_tx_write(tx, count, filled(1), ITHACA_BLOCK_BYTES), ITHACA_TOO_MANY);
	EXPECT(ithaca_tx_write(tx, 0, filled(2), ITHACA_BLOCK_BYTES), ITHACA_OK);
	EXPECT(ithaca_abort(tx), ITHACA_OK);
	struct ithaca_volume *none = volume;
	EXPECT(ithaca_open("/nowhere/volume.sock", &none), ITHACA_UNREACHABLE);
	CHECK(!none && strstr(ithaca_last_error(NULL), "/nowhere"));
	ithaca_close(NULL);
}

/* Beside a server of its own: who has gone may be counted for a moment. */
static void who_connects_beside_sixty_four_others_is_told_so(void)
{
	struct ithaca_volume *all[63], *more;
	for (int nth = 0; nth < 63; nth++) {
		all[nth] = another();
		EXPECT(ithaca_flush(all[nth]), ITHACA_OK);
	}
	EXPECT(ithaca_open(path, &more), ITHACA_UNREACHABLE);
	CHECK(!more && strstr(ithaca_last_error(NULL), "64 connections are open"));
	EXPECT(ithaca_open_without_memory(path, &more), ITHACA_OK);
	EXPECT(ithaca_flush(more), ITHACA_FRAME);
	CHECK(strstr(ithaca_last_error(more), "64 connections are open"));
	EXPECT(ithaca_flush(more), ITHACA_LOST);
	ithaca_close(more);
	EXPECT(ithaca_flush(volume), ITHACA_OK);
	for (int nth = 0; nth < 63; nth++)
		ithaca_close(all[nth]);
}

int main(int count, char **arguments)
{
	if (count < 2) {
		fprintf(stderr, "usage: client SOCKET [without-memory | crowd]\n");
		return 2;
	}
	path = arguments[1];
	without_memory = count > 2 && strcmp(arguments[2], "without-memory") == 0;
	volume = another();
	if (count > 2 && !without_memory) {
		who_connects_beside_sixty_four_others_is_told_so();
		ithaca_close(volume);
		puts("ok");
		return 0;
	}
	plain_reads_and_writes();
	the_largest_read_and_write_are_whole();
	a_transaction_is_all_or_nothing();
	conflicts_are_found_and_marks_narrow_them();
	nested_ends_are_the_outer_ones();
	the_depth_says_which_end_frees();
	a_transaction_that_lacks_a_write_does_not_commit();
	other_processes_take_transactions_over();
	a_child_that_closes_what_it_was_born_with_ends_nothing();
	what_exceeds_a_limit_is_refused();
	a_region_is_reached_alone();
	ithaca_close(volume);
	puts("ok");
	return 0;
}
