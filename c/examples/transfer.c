/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves an amount from one account to another, all of it or nothing, whoever else does the same at the same time.
 *
 *     transfer SOCKET FROM TO AMOUNT
 *
 * An account is a number of 8 bytes in block 0. Only the bytes of the two accounts are read and written, so that transfers between
 * other accounts are not in conflict with this one.
 */
#include "../ithaca_volume.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define ACCOUNT_BYTES 16

/* Somebody was faster, and what was read is of the past; or it was ended to make room. */
static int is_to_begin_again(int result)
{
	return result == ITHACA_CONFLICT || result == ITHACA_PREEMPTED;
}

static void say(const struct ithaca_volume *volume, int result)
{
	if (result != ITHACA_OK && !is_to_begin_again(result))
		fprintf(stderr, "transfer: %s\n", ithaca_last_error(volume));
}

static int transfer(struct ithaca_volume *volume, uint64_t from, uint64_t to, int64_t amount, uint64_t *version)
{
	struct ithaca_tx *tx;
	const size_t at[2] = { from * ACCOUNT_BYTES, to * ACCOUNT_BYTES };
	int result = ithaca_begin(volume, ITHACA_SERIALIZABLE, &tx);
	if (result != ITHACA_OK) {
		say(volume, result);
		return result;
	}
	/* One after the other: both may be the same account. */
	for (int side = 0; side < 2 && result == ITHACA_OK; side++) {
		int64_t balance;
		result = ithaca_tx_read_part(tx, 0, at[side], &balance, sizeof balance);
		if (result != ITHACA_OK)
			break;
		balance += side == 0 ? -amount : amount;
		result = ithaca_tx_write_part(tx, 0, at[side], &balance, sizeof balance);
	}
	if (result == ITHACA_OK) {
		result = ithaca_commit(tx, version);
		say(volume, result);
		return result;
	}
	/* Before the next call: that has words of its own. */
	say(volume, result);
	ithaca_abort(tx);
	return result;
}

int main(int count, char **arguments)
{
	struct ithaca_volume *volume;
	uint64_t version = 0;
	int result;
	if (count != 5) {
		fprintf(stderr, "usage: transfer SOCKET FROM TO AMOUNT\n");
		return 2;
	}
	if (ithaca_open(arguments[1], &volume) != ITHACA_OK) {
		fprintf(stderr, "transfer: %s\n", ithaca_last_error(NULL));
		return 3;
	}
	do {
		result = transfer(volume, strtoull(arguments[2], NULL, 10), strtoull(arguments[3], NULL, 10),
				  strtoll(arguments[4], NULL, 10), &version);
	} while (is_to_begin_again(result));
	if (result == ITHACA_OK)
		printf("version %" PRIu64 "\n", version);
	ithaca_close(volume);
	return result == ITHACA_OK ? 0 : 1;
}
