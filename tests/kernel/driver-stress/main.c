// SPDX-License-Identifier: GPL-2.0-only
/*
 * Uses the driver as no sensible program does, on a kernel that watches it. The kernel's complaints
 * are for the caller to look for; the status says whether a call gave a wrong answer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"

static const char usage[] =
	"Usage: driver-stress race SECONDS                    threads that remove what others make\n"
	"       driver-stress family SECONDS PROCESSES PEER   processes that make, map, fork and die\n"
	"       driver-stress orphans COUNT                   CREATE_QUEUE on an adaptor that answers nothing\n"
	"       driver-stress faults FUNCTION                 each operation with each of its allocations failing\n";

int main(int count, char **words)
{
	const char *kind = count > 2 ? words[1] : "";

	calls_init();
	if (!strcmp(kind, "race") && count == 3) {
		run_race(atof(words[2]));
	} else if (!strcmp(kind, "family") && count == 5) {
		run_family(atof(words[2]), atoi(words[3]), atoi(words[4]));
	} else if (!strcmp(kind, "orphans") && count == 3) {
		run_orphans(atoi(words[2]));
	} else if (!strcmp(kind, "faults") && count == 3) {
		run_faults(words[2]);
	} else {
		fputs(usage, stderr);
		return 2;
	}
	printf("%lu calls, %lu of them refused, %lu wrong\n", tally->calls, tally->refused, tally->wrong);
	return tally->wrong != 0;
}
