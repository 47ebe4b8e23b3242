/* The expiry rule in C99, for microcontrollers: reads stamp, time-to-live and instant; prints if the call has expired. */
#include <inttypes.h>
#include <rtcontrol/in_force.h>
#include <stdio.h>

int main(void) {
    int64_t stamp, ttl, now;
    while (scanf("%" SCNd64 " %" SCNd64 " %" SCNd64, &stamp, &ttl, &now) == 3)
        printf("%d\n", rtc_is_expired(stamp, ttl, now));
    return 0;
}
