// Answers requests about the client's pure parts, one per line, as JSON for the tests to compare. This file is also a
// second one that includes the headers.
#include "filter.h"

#include <rtcontrol/connect.h>

#include <cmath>
#include <iostream>
#include <memory>
#include <sstream>

#include "json.h"

using namespace rtcontrol;

namespace {

Value told(const Problem& problem, Value good) {
    if (!problem) return good;
    return Map{{"code", problem->code}, {"field", problem->field.empty() ? Value() : Value(problem->field)},
               {"what", problem->what}, {"remedy", problem->remedy}};
}

Value calls_of(const std::vector<Call>& calls) {
    List list;
    for (const Call& call : calls) list.push_back(call.value());
    return list;
}

Value expires(int64_t ns) { return ns == RTC_NEVER ? Value() : Value(ns); }

Options options_of(const Value& given) {
    Options options;
    options.tools = {Tool("steer").integer("angle", -30, 30, 10), Tool("hold"), Tool("stop")};
    options.instruction = "Go.";
    options.safe_calls = {{"hold", Map{}}, {"stop", Map{}}};
    for (const Entry& entry : given.map()) {
        if (entry.key == "safe_calls") options.safe_calls = Call::of(entry.value);
        if (entry.key == "safe_call") options.safe_calls = Call::of(entry.value);
        if (entry.key == "pacing") options.pacing = entry.value.text();
        if (entry.key == "agent") options.agent = entry.value.text();
        if (entry.key == "name") options.name = entry.value.text();
        if (entry.key == "hz") options.hz = entry.value.number();
        if (entry.key == "ttl_ms" && !entry.value.is_null()) options.ttl_ms = entry.value.number();
        if (entry.key == "tools") options.tools = entry.value.list();
        if (entry.key == "persist") options.persist = entry.value.flag();
    }
    return options;
}

class Filter {
 public:
    Value answer(const std::string& line) {
        std::istringstream words(line);
        std::string what;
        words >> what;
        if (what == "decode" || what == "again") {
            Parts parts;
            for (std::string part; words >> part;) parts.push_back(part == "-" ? "" : unhex(part));
            Value message;
            Problem problem = decode(parts, message);
            if (problem || what == "decode") return told(problem, Map{{"message", message}});
            List again;
            for (const std::string& part : encode(message)) again.push_back(hex(part));
            return again;
        }
        if (what == "clock") offset_ = ClockOffset();
        if (what == "sample") {
            int64_t t[4];
            for (int64_t& one : t) words >> one;
            offset_.add(t[0], t[1], t[2], t[3]);
            return offset_.known ? Value(Map{{"offset_ns", offset_.offset_ns}, {"rtt_ns", offset_.rtt_ns}}) : Value();
        }
        if (what == "phase") {
            phase_ = PhaseLock();
            offset_ = ClockOffset();
            words >> period_;
        }
        if (what == "next") {
            int64_t at, release;
            words >> at >> release;
            offset_.look(at);
            const std::optional<int64_t> due = phase_.next_ns(release, period_, offset_, at);
            return due ? Value(*due) : Value();
        }
        if (what == "observed") {
            int64_t seq, at;
            words >> seq >> at;
            phase_.observed(seq, period_, at);
        }
        if (what == "heard") {
            int64_t at;
            std::string given;
            words >> at >> given;
            Value call;
            MsgPackReader::read(hold_ = unhex(given), call);
            const Value &release = call["release_ns"], &age_ms = call["timing"]["age_ms"];
            if (call["status"].text() == "fresh" && !release.is_null() && !age_ms.is_null())
                phase_.heard(call["seq_obs"].whole(), release.whole(), call["t_server_ns"].whole(),
                             int64_t(std::llround(age_ms.number() * 1e6)), period_, at);
        }
        if (what == "endpoint") {
            std::string text;
            std::getline(words >> std::ws, text);
            return told(detail::check_endpoint(text), Value(text));
        }
        if (what == "connect") {
            std::string given;
            words >> given;
            Value map;
            MsgPackReader::read(hold_ = unhex(given), map);
            const detail::Response got{int(map["status"].whole()), map["retry_after"].text(), map["body"].text()};
            const Keys keys{map["server_key_given"].flag() ? "by hand" : "", "", map["keys"].flag() ? "own" : ""};
            const detail::Answer found = detail::read_answer(map["url"].text(), got, keys);
            return Map{{"address", found.address}, {"server_key", found.server_key}, {"why", found.why},
                       {"retry_s", found.retry_ns / detail::kSecond}};
        }
        if (what == "keys") {
            std::string secret, server;
            words >> secret >> server;
            Keys keys;
            const Problem problem = detail::read_keys(secret, server, false, keys);
            return told(problem, List{keys.server, keys.ours, keys.secret});
        }
        if (what == "talk") {
            std::string given;
            words >> given;
            Value map = Map{};
            if (!given.empty()) MsgPackReader::read(hold_ = unhex(given), map);
            now_ = detail::kSecond;
            talk_ = std::make_unique<detail::Talk>(options_of(map), [this] { return now_; });
            talk_->several = map["several"].flag();
            return told(talk_->ended, Value());
        }
        if (what == "on") return on(words);
        return {};
    }

 private:
    Value on(std::istringstream& words) {
        std::string event, more;
        int64_t at = 0;
        words >> event >> at >> more;
        detail::Talk& talk = *talk_;
        now_ = at;
        const int64_t expired = talk.counts.expired;
        Value given;
        if (!more.empty() && event != "hear") MsgPackReader::read(hold_ = unhex(more), given);
        if (event == "connected") talk.connected(at);
        if (event == "hear") {
            Value message;
            if (const Problem problem = decode({unhex(more)}, message)) return told(problem, {});
            talk.hear(message, at);
        }
        if (event == "look") talk.look(at);
        if (event == "observe") talk.observe(Map{{"type", "observe"}, {"text", given}}, at);
        if (event == "instruct") talk.instruct(given.text());
        if (event == "reset") talk.reset(given);
        if (event == "lost") talk.lost();
        if (event == "elsewhere") talk.elsewhere(), talk.forget();
        if (event == "take") taken_ = *std::exchange(talk.pending, {});
        if (event == "done") talk.acknowledge(taken_, given.text().c_str());
        if (event == "done" && given.text() == "failed") talk.give_up(taken_);
        if (event == "failed") talk.again(taken_, taken_.calls);
        if (event == "unsaid") talk.unsaid(due_, at);
        if (event == "clock") talk.offset.look(at);
        if (event == "next") {
            const std::optional<int64_t> due = talk.next_look_ns(at);
            return due ? Value(*due) : Value();
        }
        if (event == "due") {
            due_ = talk.due(at);
            if (!due_.empty()) talk.said(at);
            List said;
            for (Value message : due_) {
                if (const Problem problem = checked(message)) return told(problem, {});
                said.push_back(message);
            }
            return said;
        }
        const bool begins = talk.pending.has_value();
        const int64_t ends = talk.rule.expires_ns;
        return Map{{"open", talk.open}, {"gone", talk.silent(at) || !talk.leaves.empty()}, {"at_once", talk.at_once},
                   {"wake_ns", std::min(talk.wake_ns(), ends == RTC_NEVER ? ends : ends + 1)},
                   {"clock", talk.offset.known ? Value(talk.offset.offset_ns) : Value()},
                   {"ended", talk.ended ? Value(talk.ended->text()) : Value()},
                   {"execute", begins ? calls_of(talk.pending->calls) : Value(List{})}, {"begins", begins},
                   {"cause", talk.standing.cause}, {"calls", calls_of(talk.standing.calls)},
                   {"in_force", talk.rule.kind == RTC_NONE ? "none" : talk.rule.kind == RTC_CALL ? "call" : "safe"},
                   {"expires_ns", expires(talk.rule.expires_ns)}, {"standing_ns", expires(talk.standing.expires_ns)},
                   {"late", talk.counts.expired > expired}, {"epoch", talk.rule.epoch}};
    }

    ClockOffset offset_;
    PhaseLock phase_;
    int64_t period_ = 1;
    std::unique_ptr<detail::Talk> talk_;
    std::vector<Value> due_;
    std::string hold_;
    Act taken_;
    int64_t now_ = 0;
};

}  // namespace

int filter() {
    Filter one;
    for (std::string line; std::getline(std::cin, line);) std::cout << json(one.answer(line)) << std::endl;
    return 0;
}
