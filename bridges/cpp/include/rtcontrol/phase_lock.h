// When to look at the world, so that what is seen arrives just in time for the server's next tick (docs/protocol.md,
// section 6). Pure: the caller brings the time. All instants and durations are in ns.
#pragma once
#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>
#include "clock.h"

namespace rtcontrol {

class PhaseLock {
 public:
    // The instant of the next look; the same one until then, or until observed(). Nothing: neither a way nor the
    // clocks' offset is known. `release` is any tick of the grid.
    std::optional<int64_t> next_ns(int64_t release, int64_t period, const ClockOffset& offset, int64_t now) {
        const std::optional<int64_t> lead = lead_ns(period, offset, now);
        if (!lead || release > kMost) return {};
        const int64_t past = now + *lead - release,
                      ticks = past / period - (past % period < 0);  // towards minus infinity
        aimed_ = release + (ticks + 1) * period;
        if (taken_ && std::abs(aimed_ - *taken_) < (period + 1) / 2) aimed_ += period;
        return due_ = aimed_ - *lead;
    }
    // An observation is sent: it was begun when it was due, or now where none was due within the last period.
    void observed(int64_t seq, int64_t period, int64_t now) {
        const bool timely = due_ && now >= *due_ && now - *due_ < period;
        begun_.push_back({seq, timely ? *due_ : now});
        if (timely) taken_ = aimed_, due_.reset();
        if (begun_.size() > kKept) begun_.pop_front();
    }
    // A fresh call that came at `sent` of the server's clock tells how old (`age`) the observation was there.
    void heard(int64_t seq, int64_t release, int64_t sent, int64_t age, int64_t period, int64_t now) {
        if (seq <= learnt_ || release > kMost || sent > kMost) return;
        learnt_ = seq;  // one that is decided again tells nothing new
        const auto it = std::find_if(begun_.begin(), begun_.end(), [&](const auto& one) { return one.first == seq; });
        if (it == begun_.end()) return;
        const int64_t arrived = sent - age, before = release - period;
        const bool first = arrived + 5'000'000 >= before;  // else a plan's step, say: an earlier tick had it already
        // The tick before the first one did not have it yet, whatever its stamp of arrival says.
        ways_.push_back({now, (first ? std::max(arrived, before) : arrived) - it->second});
        if (first) waits_.push_back(release - arrived);
        begun_.erase(it);
        if (ways_.size() > kKept) ways_.pop_front();
        if (waits_.size() > kKept) waits_.pop_front();
    }
    // How long observations lay at the server before their tick: the median of the newest; -1 where there is none.
    int64_t waited_ns() const {
        std::vector<int64_t> waits(waits_.begin(), waits_.end());
        std::sort(waits.begin(), waits.end());
        return waits.empty() ? -1 : waits[waits.size() / 2];
    }

 private:
    // A late look waits for a whole period: the lead is the way that makes observations youngest on average.
    std::optional<int64_t> lead_ns(int64_t period, const ClockOffset& offset, int64_t now) const {
        std::vector<int64_t> ways;
        for (const auto& [learnt, way] : ways_)
            if (now - learnt <= 10'000'000'000) ways.push_back(way);
        if (ways.empty())
            return offset.known ? std::optional(offset.offset_ns + offset.rtt_ns / 2 + 5'000'000) : std::nullopt;
        std::sort(ways.begin(), ways.end());
        size_t best = ways.size() - 1;
        const auto cost = [&](size_t i) {
            return double(ways.size()) * double(ways[i] - ways[0]) + double(period) * double(ways.size() - 1 - i);
        };
        for (size_t i = best; ways.size() >= 8 && i-- > 0;)
            if (cost(i) < cost(best)) best = i;
        return ways[best] + 1'000'000;
    }
    static constexpr size_t kKept = 64;
    static constexpr int64_t kMost = int64_t{1} << 61;  // of an instant: beyond it no sum is safe
    std::deque<std::pair<int64_t, int64_t>> ways_, begun_;  // (when learnt, way); (seq, when begun)
    std::deque<int64_t> waits_;
    std::optional<int64_t> due_, taken_;  // the next look; the tick of the last one
    int64_t aimed_ = 0, learnt_ = -1;     // the tick of the next look; the last observation learnt from
};

}  // namespace rtcontrol
