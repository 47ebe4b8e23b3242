/* What is in force now: the time-to-live rule (docs/protocol.md, section 7). C99 and C++, no allocation, integers
 * alone, so that a microcontroller can run it. The caller keeps the calls and brings the time of its monotonic clock.
 */
#ifndef RTCONTROL_IN_FORCE_H
#define RTCONTROL_IN_FORCE_H
#include <stdbool.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define RTC_NEVER INT64_MAX /* of expires_ns: no end */

typedef enum { RTC_NONE, RTC_CALL, RTC_SAFE } rtc_kind;
typedef enum { RTC_FRESH, RTC_HELD, RTC_TOLD_SAFE } rtc_status;

typedef struct { /* Begin with rtc_begin(). */
    rtc_kind kind;
    int64_t epoch, last_tick;
    int64_t expires_ns; /* the last instant at which the call is in force */
    int64_t stamp_ns;   /* of the newest observation by which the call is in force */
    int64_t own_ttl_ns; /* set it after rtc_begin(): no call outlives its arrival by more; 0: no such limit */
} rtc_in_force;

typedef struct { /* The part of a `call` message that the rule looks at. */
    rtc_status status;
    bool has_call;
    int64_t tick, epoch;
    int64_t t_obs_ns; /* -1: absent */
    int64_t ttl_ns;   /* ttl_ms in ns; 0: no limit */
} rtc_message;

typedef struct {     /* What to do after an event. */
    rtc_kind act;    /* RTC_CALL: execute the message's call. RTC_SAFE: act safe. RTC_NONE: nothing begins. */
    bool by_message; /* act safe by the message's safe calls, where it has some; else by your own */
    bool expired;    /* the message's call was too old: acknowledge it as expired, never execute it */
} rtc_step;

static const rtc_step rtc_nothing = {RTC_NONE, false, false};

/* A new episode, whose world is at rest; ticks go on. */
static inline void rtc_reset(rtc_in_force *now, int64_t epoch) {
    now->kind = RTC_NONE;
    now->epoch = epoch;
    now->expires_ns = RTC_NEVER;
}

static inline void rtc_begin(rtc_in_force *now, int64_t epoch) {
    rtc_reset(now, epoch);
    now->last_tick = now->stamp_ns = -1;
    now->own_ttl_ns = 0;
}

static inline rtc_step rtc_act_safe(rtc_in_force *now, bool by_message) {
    rtc_step step = {RTC_SAFE, by_message, false};
    now->kind = RTC_SAFE;
    now->expires_ns = RTC_NEVER;
    return step;
}

/* Nothing arrived: call it at least every 50 ms, or one nanosecond after expires_ns. */
static inline rtc_step rtc_look(rtc_in_force *now, int64_t now_ns) {
    return now->kind == RTC_CALL && now_ns > now->expires_ns ? rtc_act_safe(now, false) : rtc_nothing;
}

static inline int64_t rtc_end_ns(int64_t t_obs_ns, int64_t ttl_ns) {
    return ttl_ns == 0 || t_obs_ns > INT64_MAX - ttl_ns ? RTC_NEVER : t_obs_ns + ttl_ns;
}

/* A stamp that is absent, or of an instant to come, belongs to no observation of this client. */
static inline bool rtc_is_expired(int64_t t_obs_ns, int64_t ttl_ns, int64_t now_ns) {
    return t_obs_ns < 0 || now_ns < t_obs_ns || ttl_ns < 0 || now_ns > rtc_end_ns(t_obs_ns, ttl_ns);
}

/* A checked `call` message of this session arrived. */
static inline rtc_step rtc_receive(rtc_in_force *now, const rtc_message *m, int64_t now_ns) {
    rtc_step step;
    if (m->epoch != now->epoch || m->tick <= now->last_tick) return rtc_look(now, now_ns);
    now->last_tick = m->tick;
    if (m->status == RTC_TOLD_SAFE) return now->kind == RTC_SAFE ? rtc_nothing : rtc_act_safe(now, true);
    if (m->status == RTC_HELD) return rtc_look(now, now_ns);
    if (rtc_is_expired(m->t_obs_ns, m->ttl_ns, now_ns)) {
        step = rtc_look(now, now_ns);
        step.expired = m->has_call;
        return step;
    }
    step = m->has_call ? rtc_nothing : rtc_look(now, now_ns); /* going on does not revive what has run out */
    if (m->has_call) now->kind = step.act = RTC_CALL;
    if (now->kind == RTC_CALL && (m->has_call || m->t_obs_ns > now->stamp_ns)) { /* renewed by a newer observation */
        const int64_t end_ns = rtc_end_ns(m->t_obs_ns, m->ttl_ns), own_ns = rtc_end_ns(now_ns, now->own_ttl_ns);
        now->expires_ns = own_ns < end_ns ? own_ns : end_ns;
        now->stamp_ns = m->t_obs_ns;
    }
    return step;
}

/* The welcome of a new session: a call of the one before ends, for nobody would end it later. */
static inline rtc_step rtc_new_session(rtc_in_force *now, int64_t epoch) {
    rtc_step step = now->kind == RTC_CALL ? rtc_act_safe(now, false) : rtc_nothing;
    rtc_reset(now, epoch);
    now->last_tick = -1;
    return step;
}

/* The connection is lost: a call with a time-to-live lives on for it, one without ends now. */
static inline rtc_step rtc_server_lost(rtc_in_force *now) {
    return now->kind == RTC_CALL && now->expires_ns == RTC_NEVER ? rtc_act_safe(now, false) : rtc_nothing;
}

/* The session has ended, by bye or a fatal error, or a call failed. */
static inline rtc_step rtc_server_left(rtc_in_force *now) {
    return now->kind == RTC_SAFE ? rtc_nothing : rtc_act_safe(now, false);
}

#ifdef __cplusplus
}
#endif
#endif
