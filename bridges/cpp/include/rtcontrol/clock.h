// The monotonic clock, and how far the server's is from it (docs/protocol.md, section 6).
#pragma once
#include <stdint.h>
#include <time.h>
#include <deque>

namespace rtcontrol {

// A clock that also counts while the machine is suspended: a call must not outlive that.
#if defined(CLOCK_BOOTTIME)
constexpr clockid_t kClock = CLOCK_BOOTTIME;
#elif defined(__APPLE__)
constexpr clockid_t kClock = CLOCK_MONOTONIC_RAW;  // mach_continuous_time()
#else
constexpr clockid_t kClock = CLOCK_MONOTONIC;
#endif

inline int64_t now_ns() {
    timespec now;
    clock_gettime(kClock, &now);
    return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

// The server's clock minus ours, by four stamps.
class ClockOffset {
 public:
    bool known = false;
    int64_t offset_ns = 0, rtt_ns = 0;  // the sample with the fastest round trip: the truth lies within half of it

    // Asked at t0 and answered at t3 on our clock, received at t1 and sent at t2 on theirs.
    void add(int64_t t0, int64_t t1, int64_t t2, int64_t t3) {
        const int64_t there = t1 - t0, back = t2 - t3;  // halved first: their sum may be too large
        if (t3 >= t0 && t2 >= t1 && t3 - t0 >= t2 - t1 && t2 < INT64_MAX / 2)
            samples_.push_back({t3, there / 2 + back / 2 + (there % 2 + back % 2) / 2, (t3 - t0) - (t2 - t1)});
        if (samples_.size() > 16) samples_.pop_front();
        look(t3);
    }
    // Forgets what is too old to be believed. Of equal samples the newest counts, since clocks drift.
    void look(int64_t now) {
        while (!samples_.empty() && now - samples_.front().at > 60'000'000'000) samples_.pop_front();
        known = !samples_.empty();
        rtt_ns = INT64_MAX;
        for (const Sample& one : samples_)
            if (one.rtt <= rtt_ns) offset_ns = one.offset, rtt_ns = one.rtt;
    }

 private:
    struct Sample {
        int64_t at, offset, rtt;
    };
    std::deque<Sample> samples_;
};

}  // namespace rtcontrol
