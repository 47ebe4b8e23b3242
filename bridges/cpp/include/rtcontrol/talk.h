// The conversation without a socket: what to say when, what is believed, what is in force (docs/protocol.md). Not
// thread-safe: the client holds a lock around every use.
#pragma once
#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <random>
#include "in_force.h"
#include "messages.h"
#include "phase_lock.h"

namespace rtcontrol {

enum class Force {
    none,
    call,
    safe,
    failing
};  // failing: it should be safe, but a safe call failed and is tried again

// What is in force, or begins to be. Of several safe calls all are in force; none: stop in your own way.
struct Act {
    Force kind = Force::none;
    std::vector<Call> calls;
    int64_t tick = -1, seq_obs = -1,
            stamp_ns = -1;  // of the server's message, and of its observation; -1: there is none
    int64_t expires_ns = RTC_NEVER, epoch = 0;
    double confidence = std::numeric_limits<double>::quiet_NaN();  // NaN: not told
    std::string cause, session;  // why safe: the server's, or expired, failed, server_lost, session_ended, new_session
    int attempt = 1;             // above 1: a safe call failed and is tried again
    bool owed = false;           // the server waits for an `executed`
};

// What became of a call. After one that failed safe follows; after one that your own bounds refused, it need not.
struct Outcome {
    enum Kind { kDone, kFailed, kRefused } kind = kDone;
    std::string words = "";  // a result, or why
    static Outcome done(std::string result = "") { return {kDone, std::move(result)}; }
    static Outcome failed(std::string why) { return {kFailed, std::move(why)}; }
    static Outcome refused(std::string why) { return {kRefused, std::move(why)}; }
};

// Carries one call out. A call without a name: stop in your own way. What it throws is a failure.
using Handler = std::function<Outcome(const Call& call, const Act& act)>;

// What is empty, or 0, is left to the server.
struct Options {
    // Or http://HOST:PORT/connect, which names one of its servers.
    std::string endpoint = "tcp://127.0.0.1:5555";
    std::string secret_key_file, server_key_file;   // NAME.key_secret; server.key (default: beside it)
    std::string name = "rtcontrol-cpp", agent, instruction, model, pacing = "server", on_miss, robot;
    std::vector<Value> tools;      // see Tool
    std::vector<Call> safe_calls;  // whenever no call may be in force, one for each actuator
    double hz = 0, deadline_ms = 0, max_age_ms = 0;
    std::optional<double> ttl_ms, hold_ms;
    bool persist = false, acknowledge = true;  // greet anew also after the server's bye; tell what became of each call
    std::function<void(const std::string&)> log;  // what people should read, in a thread of its own; default: stderr
};

struct Statistics {
    int64_t observed = 0, superseded = 0, fresh = 0, held = 0, safe = 0, expired = 0, skipped = 0, executed = 0,
            failed = 0, refused = 0, ignored = 0, sessions = 0, resumed = 0, reconnects = 0, errors = 0;
    int64_t unlogged = 0;    // lines that nobody read in time
    int64_t waited_ns = -1;  // how long observations lay at the server before their tick
};

namespace detail {

constexpr int64_t kMs = 1'000'000, kSecond = 1000 * kMs, kRoomAgain = 20 * kMs;
constexpr size_t kQueue = 1024;
inline bool is(const Value& message, const char* type) { return message["type"].text() == type; }
inline bool is_of_its_time(const Value& m) { return is(m, "observe") || is(m, "ping") || is(m, "pong"); }

class Talk {
 public:
    Options options;
    rtc_in_force rule;
    ClockOffset offset;
    PhaseLock phase;
    Value welcome;
    Act standing;                 // as of the rule's last step
    std::optional<Act> pending;   // what is to be carried out next; a newer act replaces an older one
    Problem ended;                // nothing is said any more
    bool open = false;            // welcomed on the present connection
    int64_t looked_ns = 0;        // when it was observed last on this connection, or was to be; 0: not yet
    bool leaves_open = false;     // ended by the user: a bye is owed
    bool failing = false;         // a safe call is tried again
    std::string refusal, leaves;  // the server's last error; why this connection is to be closed
    bool several = false;         // the next connection may go to another server
    std::string address;          // of the newest connection
    bool at_once = false;         // the server said to connect again without a pause
    int64_t decided_seq = -1, refused_seq = -1;  // of the newest observation that a call answered, or an error
    Statistics counts;
    std::deque<std::string> log;  // what waits to be written, the oldest first

    explicit Talk(Options given, std::function<int64_t()> clock = now_ns)
        : options(std::move(given)), clock_(std::move(clock)), instruction_(options.instruction), greeting_(instruction_) {
        rtc_begin(&rule, 0);
        rule.own_ttl_ns = duration_ns(options.ttl_ms.value_or(0));
        said_ns_ = heard_ns_ = clock_();
        Value hello = greet(0);
        ended = checked(hello);
        if (!options.agent.empty() && !options.tools.empty())
            ended = Error{"invalid", "agent", "There are both an agent and tools.", "Give one of them."};
    }

    // What the user says.
    int64_t observe(Value content, int64_t stamp_ns) {
        if (options.pacing != "client" || outbox_.size() >= kQueue)
            counts.superseded += drop([](const Value& m) { return is(m, "observe"); });
        seq_++;
        stamps_[size_t(seq_) % kQueue] = {seq_, stamp_ns};
        content.set("t_ns", stamp_ns);
        counts.observed++;
        phase.observed(seq_, period_ns(), looked_ns = clock_());
        outbox_.push_back(addressed(std::move(content)));
        return seq_;
    }
    void instruct(const std::string& instruction) {
        instruction_ = instruction;
        if (known_) say({{"type", "instruct"}, {"session", token_}, {"instruction", instruction}});
    }
    void reset(const Value& outcome) {
        drop([](const Value& m) { return is(m, "observe"); });
        rtc_reset(&rule, rule.epoch + 1);
        if (known_) say(reset_to(rule.epoch, outcome));  // one without room is made up for after a resume
        pending.reset();
        standing = Act();
        failing = false;
    }
    void acknowledge(const Act& act, const char* outcome, std::string words = "") {
        if (!act.owed || !options.acknowledge || act.session != token_ || act.epoch != rule.epoch) return;
        words.resize(std::min<size_t>(words.size(), 8192));
        while (!is_utf8(words)) words.pop_back();
        Map executed{{"type", "executed"}, {"session", token_}, {"tick", act.tick}, {"epoch", act.epoch},
                     {"outcome", outcome}, {"t_ns", clock_()}};
        if (!words.empty())
            executed.push_back({std::string(outcome) == "executed" ? "result" : "error", std::move(words)});
        say(std::move(executed));
    }
    // A call failed: what was done before would else go on for as long as it.
    void give_up(const Act& act) {
        if (rule.kind == RTC_CALL && standing.tick == act.tick && act.session == token_)
            begin(rtc_server_left(&rule), "failed");
    }
    // Safe calls failed: they are tried again, unless something else began meanwhile.
    void again(Act act, std::vector<Call> failed) {
        if (pending || standing.kind != Force::safe) return;
        act.calls = std::move(failed);
        act.owed = false;
        act.attempt++;
        failing = true;
        pending = std::move(act);
    }
    // Just in time for the next tick; nothing where ticks are not known.
    std::optional<int64_t> next_look_ns(int64_t at_ns) {
        offset.look(at_ns);
        if (!open || release_ns_ < 0 || options.pacing == "client") return {};
        return phase.next_ns(release_ns_, period_ns(), offset, at_ns);
    }
    int64_t period_ns() const { return std::max<int64_t>(kMs / 10, int64_t(welcome["period_ms"].number(100) * 1e6)); }

    // What the connection says.
    void connected(int64_t at_ns) {
        hello_ns_ = room_ns_ = 0;
        heard_ns_ = at_ns;
        greeted_ = false;
        refusal.clear();
        leaves.clear();
        at_once = false;
    }
    void lost() {  // or silent; what is in force runs to its own end
        counts.reconnects += open;
        if (open) begin(rtc_server_lost(&rule), "server_lost");
        open = greeted_ = false;
        looked_ns = 0;
        drop(is_of_its_time);  // an observation as old as the gap helps nobody
    }
    void forget() { known_ = false; }  // the next server does not know the session
    const std::string& session_address() const { return session_address_; }
    void elsewhere() {  // the next connection goes to another machine, maybe, whose clock is another one
        offset = ClockOffset();
        phase = PhaseLock();
        pinged_ns_ = -10 * kSecond;
        release_ns_ = -1;
    }
    bool waits_for_room() const { return !open && full_ && !ended; }
    void room() { hello_ns_ = 0; }
    std::vector<Value> due(int64_t at_ns) {
        std::vector<Value> said;
        if (ended || at_ns < (open ? room_ns_ : hello_ns_)) return said;
        if (open) {
            said.swap(outbox_);
            // The second kind is for the clocks: who observes all the time is never silent.
            if ((said.empty() && at_ns - said_ns_ >= beat_ns()) || at_ns - pinged_ns_ >= 10 * kSecond)
                said.push_back(ping(at_ns));
            return said;
        }
        hello_ns_ = at_ns + kSecond;
        said_hello_ns_ = at_ns;
        full_ = false;
        if (!greeted_) greeting_ = instruction_, first_hello_ns_ = at_ns;
        said.push_back(greet(at_ns));
        if (greeted_) said.push_back(ping(at_ns));  // a welcome may take a while; whether anybody is there, this tells
        greeted_ = true;
        return said;
    }
    void said(int64_t at_ns) { said_ns_ = at_ns; }
    // From this message on there was no room. What is of its time is old by then; the rest is said first, and not
    // twice.
    void unsaid(std::vector<Value> rest, int64_t at_ns) {
        (open ? room_ns_ : hello_ns_) = at_ns + (open ? kRoomAgain : 5 * kRoomAgain);
        if (!open) greeted_ = false, full_ = true;
        if (!open) return;
        outbox_.swap(rest);
        drop(is_of_its_time);
        outbox_.insert(outbox_.end(), rest.begin(), rest.end());
    }
    bool silent(int64_t at_ns) const { return at_ns - heard_ns_ > (open ? 3 * beat_ns() : 10 * kSecond); }
    int64_t wake_ns() const {
        const int64_t saying = std::max(outbox_.empty() ? said_ns_ + beat_ns() : 0, room_ns_);
        return ended ? RTC_NEVER : open ? std::min(saying, heard_ns_ + 3 * beat_ns() + 1) : hello_ns_;
    }
    void look(int64_t at_ns) {  // ends what is in force when its time has come
        const rtc_step step = rtc_look(&rule, at_ns);
        counts.expired += step.act != RTC_NONE;
        begin(step, "expired");
    }
    void end(Error why) {
        if (ended) return;
        if (why.code != "closed") note(why.text());
        leaves_open = open && why.code == "closed";
        ended = std::move(why);
        open = false;
        outbox_.clear();
        begin(rtc_server_left(&rule), "session_ended");
    }
    void note(const std::string& text, bool again = false) {  // for people; else nothing twice in a row
        if (!again && text == noted_) return;
        noted_ = text;
        if (log.size() < 100) log.push_back(text);
        else counts.unlogged++;
    }
    Value bye() const { return Map{{"type", "bye"}, {"session", token_}, {"reason", "closed"}}; }
    void hear(const Value& m, int64_t at_ns) {
        heard_ns_ = at_ns;
        if (ended) counts.ignored++;
        else if (is(m, "call")) hear_call(m, at_ns);
        else if (is(m, "welcome")) hear_welcome(m);
        else if (is(m, "error")) hear_error(m, at_ns);
        else if (is(m, "bye")) hear_bye(m, at_ns);
        else if (is(m, "pong"))
            offset.add(m["t_ping_ns"].whole(), m["t_received_ns"].whole(), m["t_sent_ns"].whole(), at_ns);
        else if (is(m, "instruct") && m["session"].text() == token_) instruction_ = told_ = m["instruction"].text();
        else if (is(m, "ping"))
            say({{"type", "pong"}, {"id", m["id"]}, {"t_ping_ns", m["t_ns"]}, {"t_received_ns", at_ns},
                 {"t_sent_ns", std::max(at_ns, clock_())}});
        else counts.ignored++;
    }

 private:
    // Less than one is not yet none, which would be no limit.
    static int64_t duration_ns(double ms) { return ms > 0 ? std::max<int64_t>(1, int64_t(ms * 1e6)) : 0; }
    // Within bounds: with none a server would be dead at once, with days never.
    int64_t beat_ns() const {
        return int64_t(std::clamp(welcome["heartbeat_ms"].number(1000), 50.0, 10'000.0) * 1e6);
    }
    Value greet(int64_t at_ns) const {
        Value hello = Map{{"type", "hello"}, {"protocol", List{kMajor, kMinor}}, {"t_client_ns", at_ns},
                          {"client", Map{{"name", options.name}, {"version", "0.1.0"}, {"language", "c++"}}}};
        if (options.acknowledge) hello.set("capabilities", List{"executed"});
        List safe_calls;
        for (const Call& call : options.safe_calls) safe_calls.push_back(call.value());
        if (!safe_calls.empty()) hello.set("safe_call", safe_calls[0]), hello.set("safe_calls", safe_calls);
        if (!options.tools.empty()) hello.set("tools", options.tools);
        const std::pair<const char*, const std::string*> texts[] = {
            {"agent", &options.agent},   {"instruction", &greeting_},   {"model", &options.model},
            {"pacing", &options.pacing}, {"on_miss", &options.on_miss}, {"robot", &options.robot}};
        for (const auto& [name, text] : texts)
            if (!text->empty()) hello.set(name, *text);
        const std::pair<const char*, double> numbers[] = {
            {"hz", options.hz}, {"deadline_ms", options.deadline_ms}, {"max_age_ms", options.max_age_ms}};
        for (const auto& [name, number] : numbers)
            if (number != 0) hello.set(name, number);
        if (options.ttl_ms) hello.set("ttl_ms", *options.ttl_ms);
        if (options.hold_ms) hello.set("hold_ms", *options.hold_ms);
        if (known_) hello.set("resume", token_);
        return hello;
    }
    Value ping(int64_t at_ns) { return Map{{"type", "ping"}, {"id", ++ping_}, {"t_ns", pinged_ns_ = at_ns}}; }
    Value reset_to(int64_t epoch, const Value& outcome = {}) const {
        Value message = Map{{"type", "reset"}, {"session", token_}, {"epoch", epoch}};
        message.set("ended", outcome);
        return message;
    }
    Value addressed(Value observation) const {
        observation.set("session", token_);
        observation.set("seq", seq_);
        observation.set("epoch", rule.epoch);
        return observation;
    }
    void say(Value message) {
        if (outbox_.size() < 4 * kQueue) outbox_.push_back(std::move(message));
    }
    void say(Map message) { say(Value(std::move(message))); }
    template <class Falls> int64_t drop(Falls falls) {
        const auto first = std::remove_if(outbox_.begin(), outbox_.end(), falls);
        const int64_t dropped = outbox_.end() - first;
        outbox_.erase(first, outbox_.end());
        return dropped;
    }
    void hear_welcome(const Value& message) {
        const bool resumed = message["resumed"].flag(), of_before = message["t_client_ns"].whole() < first_hello_ns_;
        if (open || of_before || (resumed && message["session"].text() != token_))
            return void(counts.ignored++);  // the answer to a hello that was said before, or twice
        if (!spoken(message["protocol"].list()))
            return end({"version", "", "The server speaks another protocol.", "Update it, or this client."});
        open = true;
        refused_ = 0;
        welcome = message;
        const std::string before = resumed ? told_ : greeting_;
        told_ = welcome["instruction"].text();
        safe_calls_ = Call::of(welcome[welcome["safe_calls"].is_null() ? "safe_call" : "safe_calls"]);
        for (const Value& warning : welcome["warnings"].list()) note("The server warns: " + warning.text());
        const int64_t epoch = welcome["epoch"].whole();
        if (!options.ttl_ms) rule.own_ttl_ns = duration_ns(welcome["ttl_ms"].number());
        if (resumed) {
            counts.resumed++;
            for (int64_t at = rule.epoch; at > std::max(epoch, rule.epoch - 256); at--) {  // these never arrived
                const auto is_it = [&](const Value& m) { return is(m, "reset") && m["epoch"].whole() == at; };
                if (std::none_of(outbox_.begin(), outbox_.end(), is_it)) outbox_.insert(outbox_.begin(), reset_to(at));
            }
        } else {
            counts.sessions++;
            elsewhere();
            token_ = welcome["session"].text();
            session_address_ = address;
            known_ = true;
            begin(rtc_new_session(&rule, epoch), "new_session");
            // What waited was for the session that is gone; only its newest look at the world is as good as ever.
            drop([](const Value& m) { return !is(m, "observe"); });
            if (!outbox_.empty()) outbox_ = {addressed(std::move(outbox_.back()))};
        }
        release_ns_ = welcome["release_ns"].whole(-1);
        // The greeting's words, as they were understood; else what was given while greeting, or lost on the way.
        if (!resumed && instruction_ == before) instruction_ = told_;
        if (instruction_.empty() || instruction_ == before || instruction_ == told_) return;
        drop([](const Value& m) { return is(m, "instruct"); });
        instruct(instruction_);
    }
    void hear_call(const Value& m, int64_t at_ns) {
        const std::string& status = m["status"].text();
        const int64_t seq = m["seq_obs"].whole(-1), stamp = m["t_obs_ns"].whole(-1);
        const rtc_message call = {status == "fresh" ? RTC_FRESH : status == "held" ? RTC_HELD : RTC_TOLD_SAFE,
                                  !m["call"].is_null(), m["tick"].whole(), m["epoch"].whole(), stamp,
                                  duration_ns(m["ttl_ms"].number())};
        // With a stamp that is not its observation's it would live longer, or shorter, than it may.
        const Stamp& known = stamps_[size_t(std::max<int64_t>(seq, 0)) % kQueue];
        const bool wrong_stamp = call.status == RTC_FRESH && known.seq == seq && known.ns != stamp;
        if (!open || m["session"].text() != token_ || call.epoch != rule.epoch || call.tick <= rule.last_tick ||
            wrong_stamp)
            return void(counts.ignored++);
        (call.status == RTC_FRESH ? counts.fresh : call.status == RTC_HELD ? counts.held : counts.safe)++;
        release_ns_ = m["release_ns"].whole(release_ns_);
        decided_seq = std::max(decided_seq, seq);
        if (call.status == RTC_FRESH && !m["release_ns"].is_null() && !m["timing"]["age_ms"].is_null())
            phase.heard(seq, m["release_ns"].whole(), m["t_server_ns"].whole(),
                        int64_t(std::llround(m["timing"]["age_ms"].number() * 1e6)), period_ns(), at_ns);
        const rtc_step step = rtc_receive(&rule, &call, at_ns);
        const bool by_message = step.by_message || step.act == RTC_CALL;
        Act act;
        act.tick = call.tick;
        act.epoch = call.epoch;
        act.session = token_;
        act.seq_obs = seq;
        act.stamp_ns = stamp;
        act.confidence = m["confidence"].number(act.confidence);
        act.owed = true;
        act.calls = Call::of(m[m["calls"].is_null() || step.act == RTC_CALL ? "call" : "calls"]);
        if (step.expired) acknowledge(act, "expired");
        counts.expired += step.expired || (step.act == RTC_SAFE && !by_message);
        begin(step, by_message ? m["cause"].text() : "expired", by_message ? std::move(act) : Act());
        standing.expires_ns = rule.expires_ns;
    }
    void hear_error(const Value& m, int64_t at_ns) {
        counts.errors++;
        const std::string& code = m["code"].text();
        const int64_t hello_ns = m["t_client_ns"].whole(-1);
        const bool retryable = m["retryable"].flag(), fatal = m["fatal"].flag(), live = open;
        if (hello_ns >= 0 && (live || hello_ns < first_hello_ns_)) return;  // the hello before has another answer
        if (live) refused_seq = std::max(refused_seq, m["seq"].whole(-1));
        // In greeting these answer what was said before the hello.
        if (!live && (!m["seq"].is_null() || (code == "state" && retryable))) return;
        refusal = code + ": " + m["message"].text() + " " + m["remedy"].text();
        note("The server refused: " + refusal);
        if (code == "instruction" && counts.sessions > 0 && instruction_ != told_) {
            instruction_ = told_;  // said again in a later hello it would be refused for good: the one before goes on
            if (!live) return greeted_ = false, void(hello_ns_ = at_ns);
        }
        const bool unknown = code == "session" || (live && code == "state" && retryable);
        if (!live && code == "state" && !retryable && !fatal)
            leaves = "The server has another session on this connection.";
        else if (!retryable && (fatal || (!live && !unknown)))
            end({code, m["field"].text(), "The server refused: " + m["message"].text(), m["remedy"].text()});
        else if (unknown || fatal) {
            // Live: this connection is new to the server, so resume. Resuming: nobody knows the session, so anew.
            const bool first = !live && known_;
            known_ = known_ && live && !fatal;
            if (fatal) begin(rtc_server_left(&rule), "session_ended");
            lost();
            if (!unknown) later(at_ns);
            else hello_ns_ = first ? at_ns : std::max(at_ns, said_hello_ns_ + kSecond / 5);
        } else if (!live) later(at_ns);
    }
    void hear_bye(const Value& m, int64_t at_ns) {
        if (!m["session"].is_null() && m["session"].text() != token_) return void(counts.ignored++);
        if (!options.persist && !several)
            return end({"bye", "", "The server ended the session (" + m["reason"].text() + ").", "Connect anew."});
        known_ = false;
        begin(rtc_server_left(&rule), "session_ended");
        lost();
        later(at_ns);
        at_once = m["reconnect"].flag() && several;
    }
    // Nobody is let in now: behind GET /connect the next one is tried, a single one is asked again, with growing pauses.
    void later(int64_t at_ns) {
        if (several) leaves = "The server lets nobody in now.";
        hello_ns_ =
            at_ns + int64_t(double(kSecond << refused_) * std::uniform_real_distribution<double>(0.5, 1)(random_));
        refused_ = std::min(refused_ + 1, 2);
    }
    void begin(const rtc_step& step, const std::string& cause, Act act = {}) {
        if (step.act == RTC_NONE) return;
        if (pending) counts.skipped++, acknowledge(*pending, "expired", "superseded before it was carried out");
        act.kind = step.act == RTC_CALL ? Force::call : Force::safe;
        if (act.calls.empty()) act.calls = options.safe_calls.empty() ? safe_calls_ : options.safe_calls;
        act.expires_ns = rule.expires_ns;
        act.cause = act.kind == Force::safe ? cause : "";
        pending = standing = std::move(act);
        failing = false;
    }
    struct Stamp {
        int64_t seq = -2, ns = 0;
    };
    const std::function<int64_t()> clock_;
    std::array<Stamp, kQueue> stamps_;  // of the newest observations
    std::vector<Value> outbox_;
    std::vector<Call> safe_calls_;  // the server's
    std::string token_ = "----------------", instruction_, told_, greeting_, noted_;
    std::string session_address_;
    bool known_ = false,
         greeted_ = false;  // whether the token is a session's; whether this connection's first hello was said
    bool full_ = false;                     // it found no room
    int refused_ = 0;                       // hellos in a row
    int64_t hello_ns_ = 0, said_hello_ns_ = 0, first_hello_ns_ = 0, release_ns_ = -1, room_ns_ = 0, said_ns_ = 0,
            heard_ns_ = 0, ping_ = 0, pinged_ns_ = -10 * kSecond, seq_ = 0;
    std::minstd_rand random_{unsigned(now_ns())};
};

}  // namespace detail
}  // namespace rtcontrol
