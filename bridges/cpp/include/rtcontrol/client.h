// A client of an rtcontrol server (docs/protocol.md). Every function may be called from any thread, and none but
// decided() and wait_to_look() waits for anything. POSIX; needs libzmq.
#pragma once
#include "link.h"

namespace rtcontrol {

struct Array {  // of an observation: little endian, in C order
    std::string name, dtype;  // b1 i1 u1 i2 u2 f2 i4 u4 f4 i8 u8 f8
    std::vector<int64_t> shape;
    Bytes data;
};

struct Observation {  // text, data (a map) or arrays: one of them is needed
    std::string text;
    Value data;
    std::vector<Array> arrays;
    int64_t stamp_ns = -1;  // when the world was looked at, by now_ns(); -1: now
};

struct Sent {
    int64_t seq = -1;
    Problem problem;
};

class Client {
    static constexpr std::chrono::milliseconds kForEver = std::chrono::hours(10'000);
    std::shared_ptr<detail::Link> link_;
    template <class Use> auto locked(Use use) const {
        const std::lock_guard<std::mutex> held(link_->lock);
        return use(link_->talk);
    }
    static std::chrono::milliseconds bounded(std::chrono::milliseconds patience) {  // so that no instant overflows
        return std::clamp<std::chrono::milliseconds>(patience, {}, kForEver);
    }

 public:
    // Begins to connect, and returns at once. A mistake in the options: ended() has it, and nothing is connected. With
    // a handler, a thread of the client's calls it, for one call after the other: a safe call waits for the one before
    // to return. Without, carry out by pump() or follow() in a thread of yours.
    explicit Client(Options options, Handler handler = {})
        : link_(std::make_shared<detail::Link>(std::move(options), std::move(handler))) {
        link_->start();
    }
    ~Client() { close(); }
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    bool connected() const { return locked([](auto& talk) { return talk.open; }); }
    // Why the session has ended for good; nothing while it has not. A lost connection does not end it.
    Problem ended() const { return locked([](auto& talk) { return talk.ended; }); }
    // Why there is no session now, for people; empty while there is one.
    std::string trouble() const { return locked([this](auto&) { return link_->trouble(); }); }
    Value welcome() const { return locked([](auto& talk) { return talk.welcome; }); }
    std::string address() const {  // where the newest connection goes
        return locked([](auto& talk) { return talk.address; });
    }
    Statistics statistics() const {
        return locked([](auto& talk) { return talk.counts.waited_ns = talk.phase.waited_ns(), talk.counts; });
    }
    ClockOffset server_clock() const {
        return locked([](auto& talk) { return talk.offset.look(now_ns()), talk.offset; });
    }

    // What is in force at this instant; never a call beyond its time-to-live. Only looks.
    Act current() const {
        return locked([](auto& talk) {
            talk.look(now_ns());
            Act act = talk.standing;
            if (talk.failing) act.kind = Force::failing;
            return act;
        });
    }
    // Carries out what began to be in force since the last time. True: there was something.
    bool pump(const Handler& handler) { return link_->pump(handler); }
    // What is in force, for a control loop that does it at once: what is new is acknowledged as executed.
    Act follow() {
        pump([](const Call&, const Act&) { return Outcome::done(); });
        return current();
    }

    // Sends one look at the world. Newer ones replace those that could not be sent yet.
    Sent observe(Observation look) {
        const int64_t now = now_ns();
        if (look.stamp_ns > now)
            return {-1, Error{"invalid", "t_ns", "It is an instant to come.", "Stamp by now_ns()."}};
        Value content =
            Map{{"type", "observe"}, {"session", "----------------"}, {"seq", 0}, {"epoch", 0}, {"t_ns", 0}};
        if (!look.text.empty()) content.set("text", std::move(look.text));
        content.set("data", std::move(look.data));
        List arrays;
        for (Array& one : look.arrays)
            arrays.push_back(Map{{"name", one.name}, {"dtype", one.dtype}, {"data", std::move(one.data)},
                                 {"shape", List(one.shape.begin(), one.shape.end())}});
        if (!arrays.empty()) content.set("arrays", std::move(arrays));
        if (Problem problem = checked(content)) return {-1, problem};
        const int64_t stamp = look.stamp_ns < 0 ? now : look.stamp_ns;
        const int64_t seq = locked([&](auto& talk) { return talk.observe(std::move(content), stamp); });
        link_->wake();
        return {seq, {}};
    }
    Sent observe(std::string text) { return observe(Observation{std::move(text), {}, {}, -1}); }
    // Waits until it is time to look at the world, just before the server's next tick. False: not in this time, or the
    // session has ended.
    bool wait_to_look(std::chrono::milliseconds patience = kForEver) {
        std::unique_lock<std::mutex> held(link_->lock);
        const int64_t end = now_ns() + bounded(patience).count() * detail::kMs;
        std::optional<int64_t> due;
        for (detail::Talk& talk = link_->talk; !link_->closing && !talk.ended;) {
            const int64_t now = now_ns();
            if (!talk.open) due.reset();
            else if (talk.looked_ns == 0 || (due && now >= *due)) return talk.looked_ns = now, true;
            else if (!due) due = talk.next_look_ns(now).value_or(talk.looked_ns + talk.period_ns());
            if (now >= end) return false;
            const int64_t wake = std::min(end, due.value_or(now + 20 * detail::kMs));
            link_->changed.wait_for(held, std::chrono::nanoseconds(std::max<int64_t>(wake - now, 1)));
        }
        return false;
    }
    // Client-paced: waits until an observation was decided upon. False: not in this time, it was refused, or the
    // session has ended.
    bool decided(int64_t seq, std::chrono::milliseconds patience) {
        std::unique_lock<std::mutex> held(link_->lock);
        const detail::Talk& talk = link_->talk;
        const auto over = [&] { return std::max(talk.decided_seq, talk.refused_seq) >= seq || talk.ended; };
        return link_->changed.wait_for(held, bounded(patience), over) && link_->talk.decided_seq >= seq;
    }
    // The goal in words, from the next tick on.
    Problem instruct(const std::string& instruction) {
        Value message = Map{{"type", "instruct"}, {"session", "----------------"}, {"instruction", instruction}};
        const Problem problem = checked(message);
        if (!problem) locked([&](auto& talk) { talk.instruct(instruction); });
        link_->wake();
        return problem;
    }
    // A new episode, whose world is at rest. `outcome`: how the one before ended (seed, return, success, seconds).
    Problem reset(Value outcome = {}) {
        Value message = Map{{"type", "reset"}, {"session", "----------------"}, {"epoch", 0}};
        message.set("ended", std::move(outcome));
        const Problem problem = checked(message);
        if (!problem) locked([&](auto& talk) { talk.reset(message["ended"]); });
        link_->wake();
        return problem;
    }
    // Says bye; safe is in force then, and the handler carries it out. This and the destructor wait for that for six
    // seconds at most, both together, whatever hangs.
    void close() { link_->close(); }
};

}  // namespace rtcontrol
