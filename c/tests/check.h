/* SPDX-License-Identifier: Apache-2.0
 *
 * How the tests of the library say what does not hold: CHECK, which ends the program with the line and what the library says.
 */
#ifndef ITHACA_TESTS_CHECK_H
#define ITHACA_TESTS_CHECK_H

#include "../ithaca_volume.h"

#include <stdio.h>
#include <stdlib.h>

static struct ithaca_volume *volume;

#define CHECK(condition) check((condition) ? 1 : 0, #condition, __LINE__)

static void check(int holds, const char *what, int line)
{
	if (holds)
		return;
	fprintf(stderr, "line %d: %s: %s\n", line, what, ithaca_last_error(volume));
	exit(1);
}

#endif
