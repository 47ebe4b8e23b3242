/* The rule as C99, as a microcontroller has it: one event a line, one JSON answer a line. */
#include <inttypes.h>
#include <rtcontrol/in_force.h>
#include <stdio.h>
#include <string.h>

static void tell(rtc_step step, const rtc_in_force *now) {
    printf("{\"act\": %d, \"by_message\": %d, \"expired\": %d, \"kind\": %d, \"expires_ns\": %" PRId64 "}\n",
           (int)step.act, step.by_message, step.expired, (int)now->kind,
           now->expires_ns == RTC_NEVER ? -1 : now->expires_ns);
    fflush(stdout);
}

int main(void) {
    static const rtc_step nothing = {RTC_NONE, false, false};
    rtc_in_force now;
    char line[256], what[16];
    int64_t a[7];
    rtc_begin(&now, 0);
    while (fgets(line, sizeof line, stdin)) {
        memset(a, 0, sizeof a);
        int n = sscanf(line, "%15s %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64,
                       what, &a[0], &a[1], &a[2], &a[3], &a[4], &a[5], &a[6]);
        if (n < 1) continue;
        if (strcmp(what, "begin") == 0) {
            rtc_begin(&now, a[0]);
            now.own_ttl_ns = a[1];
            tell(nothing, &now);
        } else if (strcmp(what, "age") == 0) {
            printf("%d\n", rtc_is_expired(a[0], a[1], a[2]));
            fflush(stdout);
        } else if (strcmp(what, "receive") == 0) {
            rtc_message m = {(rtc_status)a[1], a[2] != 0, a[3], a[4], a[5], a[6]};
            tell(rtc_receive(&now, &m, a[0]), &now);
        } else if (strcmp(what, "reset") == 0) {
            rtc_reset(&now, a[1]);
            tell(rtc_look(&now, a[0]), &now);
        } else if (strcmp(what, "welcome") == 0) {
            tell(rtc_new_session(&now, a[0]), &now);
        } else {
            tell(rtc_look(&now, a[0]), &now);
        }
    }
    return 0;
}
