// A simulated robot: observes, prints executed calls as JSON lines, and reads commands as lines: rate HZ (0:
// none), nan, text, reset, instruct WORDS, array, stuck TIMES (safe calls fail so often), throw, block MS (in the
// handler), clog MS (in the log), leave (close twice, inside of the handler), stats, close. It checks the
// active call in every cycle.
#include <poll.h>
#include <rtcontrol/client.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <map>

#include "filter.h"
#include "json.h"

using namespace rtcontrol;

namespace {

std::mutex telling;

void tell(Map event) {
    event.push_back({"at_ms", static_cast<double>(now_ns()) / 1e6});
    const std::lock_guard<std::mutex> held(telling);
    std::cout << json(event) << std::endl;
}

const char* name(Force kind) {
    static const char* const names[] = {"none", "call", "safe", "failing"};
    return names[static_cast<int>(kind)];
}

class Robot {
 public:
    explicit Robot(std::map<std::string, std::string> given) : given_(std::move(given)) {
        rate_ = number("hz", 16);
        ttl_ms_ = number("ttl-ms", 500);
    }

    int run() {
        Options options;
        options.endpoint = given_["endpoint"];
        options.secret_key_file = given_["keys"];
        options.tools = {Tool("steer", "Turn the wheel.").integer("angle", -30, 30, 10), Tool("stop", "Stand still."),
                         Tool("hold", "Hold on.")};
        options.instruction = "Follow the road.";
        options.model = "random";
        options.hz = number("hz", 16);
        options.pacing = given_.count("lockstep") || given_.count("client-paced") ? "client" : "server";
        options.ttl_ms = ttl_ms_;
        options.safe_calls = {{"stop", Map{}}};
        if (given_.count("crane")) options.safe_calls = {{"hold", Map{}}, {"stop", Map{}}};
        if (!given_.count("stderr")) options.log = [this](const std::string& line) {
            tell({{"event", "log"}, {"line", line}});
            std::this_thread::sleep_for(std::chrono::milliseconds(clog_ms_.exchange(0)));
        };
        nan_ = given_.count("nan") > 0;
        const bool pumps = given_.count("pump") > 0, follows = given_.count("follow") > 0;
        const Handler handler = [this](const Call& call, const Act& act) { return carry_out(call, act); };
        client_ = std::make_unique<Client>(options, pumps || follows ? Handler() : handler);
        if (given_.count("lockstep")) return lockstep();
        std::thread looker, watcher([this] { watch(); });
        if (given_.count("looks")) looker = std::thread([this] {
            for (; client_->wait_to_look(std::chrono::milliseconds::max()); looks_++) observe();
        });
        const int64_t end = now_ns() + static_cast<int64_t>(number("seconds", 3600) * 1e9);
        bool live = false;
        for (int64_t next = 0; !done_ && now_ns() < end;) {
            if (rate_ > 0 && now_ns() >= next && !given_.count("looks")) {
                observe();
                next = now_ns() + static_cast<int64_t>(1e9 / rate_);
            }
            if (pumps) client_->pump(handler);
            if (follows) client_->follow();
            if (client_->connected() != live) {
                live = !live;
                tell({{"event", live ? "connected" : "lost"}});
            }
            for (std::string line = command(5); !line.empty(); line = command(0)) obey(line);
        }
        tell({{"event", "stats"}, {"stats", stats()}});
        const int64_t began = now_ns();
        client_->close();
        if (pumps) client_->pump(handler);
        const double took_ms = static_cast<double>(now_ns() - began) / 1e6;
        over_ = true;
        watcher.join();
        if (looker.joinable()) looker.join();
        const Force last = client_->current().kind;
        const int64_t ended = now_ns();
        client_.reset();
        const double end_ms = static_cast<double>(now_ns() - ended) / 1e6;
        tell({{"event", "closed"}, {"close_ms", took_ms}, {"end_ms", end_ms}, {"in_force", name(last)},
              {"beyond", beyond_.load()}});
        return 0;
    }

 private:
    Outcome carry_out(const Call& call, const Act& act) {
        if (act.kind == Force::safe && stuck_-- > 0) {
            tell({{"event", "stuck"}, {"name", call.name}, {"attempt", act.attempt}});
            return Outcome::failed("It is stuck.");
        }
        const double age_ms = act.stamp_ns < 0 ? -1 : static_cast<double>(now_ns() - act.stamp_ns) / 1e6;
        if (act.kind == Force::call && age_ms > ttl_ms_) too_old_++;
        tell({{"event", act.kind == Force::call ? "call" : "safe"}, {"name", call.name}, {"angle", call["angle"]},
              {"cause", act.cause}, {"age_ms", age_ms}});
        const int ms = block_ms_.exchange(0);
        if (ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(ms));
        if (leaves_.exchange(false)) {
            const int64_t began = now_ns();
            client_->close();
            client_->close();
            tell({{"event", "left"}, {"close_ms", static_cast<double>(now_ns() - began) / 1e6}});
        }
        if (act.kind == Force::call && throws_.exchange(false)) throw std::runtime_error("The engine is off.");
        if (act.kind == Force::call && given_.count("bounds")) return Outcome::refused("Not here.");
        return Outcome::done();
    }

    // No call may ever be active after its time-to-live.
    void watch() {
        while (!over_) {
            const int64_t before = now_ns();
            const Act act = client_->current();
            if (act.kind == Force::call && before > act.expires_ns) beyond_++;
            std::this_thread::sleep_for(std::chrono::microseconds(500));
        }
    }

    int lockstep() {
        int answered = 0;
        const auto times = static_cast<int>(number("lockstep", 100));
        for (int i = 0; i < times; i++) {
            while (!client_->connected() && !client_->ended())
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
            const Sent sent = client_->observe("left 40 right 10");
            answered += !sent.problem && client_->decided(sent.seq, std::chrono::milliseconds::max());
        }
        tell({{"event", "lockstep"}, {"answered", answered}, {"stats", stats()}});
        return 0;
    }

    void observe() {
        Observation look;
        look.text = "left 40 right 10";
        if (array_) look.arrays.push_back({"range", "f4", {2}, {0, 0, 0xc0, 0x3f, 0, 0, 0, 0xc0}});
        if (nan_) look.data = Map{{"left", std::nan("")}};
        const Sent sent = client_->observe(std::move(look));
        array_ = false;
        if (sent.problem) tell({{"event", "unsent"}, {"why", sent.problem->text()}});
    }

    std::string command(int wait_ms) {
        pollfd in = {0, POLLIN, 0};
        std::string line;
        const bool waits = !std::cin.rdbuf()->in_avail() && poll(&in, 1, wait_ms) <= 0;
        if (waits) return "";
        if (!std::getline(std::cin, line)) done_ = true;
        return line;
    }

    void obey(const std::string& line) {
        const std::string what = line.substr(0, line.find(' ')),
                          rest = line.substr(std::min(what.size() + 1, line.size()));
        Problem problem;
        if (what == "rate") rate_ = std::atof(rest.c_str());
        if (what == "nan" || what == "text") nan_ = what == "nan";
        if (what == "reset") problem = client_->reset(Map{{"return", 1.5}, {"success", true}});
        if (what == "instruct") problem = client_->instruct(rest);
        if (what == "array") array_ = true;
        if (what == "stuck") stuck_ = std::atoi(rest.c_str());
        if (what == "throw") throws_ = true;
        if (what == "block") block_ms_ = std::atoi(rest.c_str());
        if (what == "clog") clog_ms_ = std::atoi(rest.c_str());
        if (what == "leave") leaves_ = true;
        if (what == "stats") tell({{"event", "stats"}, {"stats", stats()}});
        if (what == "close") done_ = true;
        if (problem) tell({{"event", "unsent"}, {"why", problem->text()}});
    }

    Value stats() {
        const Statistics s = client_->statistics();
        const Problem ended = client_->ended();
        return Map{{"observed", s.observed},
                   {"superseded", s.superseded},
                   {"fresh", s.fresh},
                   {"held", s.held},
                   {"safe", s.safe},
                   {"expired", s.expired},
                   {"skipped", s.skipped},
                   {"executed", s.executed},
                   {"failed", s.failed},
                   {"refused", s.refused},
                   {"ignored", s.ignored},
                   {"sessions", s.sessions},
                   {"resumed", s.resumed},
                   {"reconnects", s.reconnects},
                   {"errors", s.errors},
                   {"too_old", too_old_.load()},
                   {"beyond", beyond_.load()},
                   {"in_force", name(client_->current().kind)},
                   {"address", client_->address()},
                   {"trouble", client_->trouble()},
                   {"ended", ended ? Value(ended->text()) : Value()},
                   {"clock_known", client_->server_clock().known},
                   {"waited_ns", s.waited_ns},
                   {"unlogged", s.unlogged},
                   {"looks", looks_.load()},
                   {"instruction", client_->welcome()["instruction"]}};
    }

    double number(const std::string& name, double otherwise) {
        return given_.count(name) ? std::atof(given_[name].c_str()) : otherwise;
    }

    std::map<std::string, std::string> given_;
    std::unique_ptr<Client> client_;
    double rate_, ttl_ms_;
    bool nan_ = false, array_ = false, done_ = false;
    std::atomic<int> stuck_{0}, block_ms_{0}, clog_ms_{0}, looks_{0}, too_old_{0}, beyond_{0};
    std::atomic<bool> throws_{false}, leaves_{false}, over_{false};
};

// Two clients at once: the second starts while the first runs, and is closed last.
int two(const std::string& endpoints) {
    const size_t comma = endpoints.find(',');
    std::atomic<int> calls[2] = {{0}, {0}};
    std::unique_ptr<Client> clients[2];
    for (int i = 0; i < 2; i++) {
        Options options;
        options.endpoint = i == 0 ? endpoints.substr(0, comma) : endpoints.substr(comma + 1);
        options.tools = {Tool("stop", "Stand still."), Tool("go", "Go on.")};
        options.instruction = "Follow the road.";
        options.model = "random";
        options.safe_calls = {{"stop", Map{}}};
        clients[i] = std::make_unique<Client>(options, [&calls, i](const Call&, const Act& act) {
            calls[i] += act.kind == Force::call;
            return Outcome::done();
        });
    }
    const int64_t end = now_ns() + 20'000'000'000;
    while ((calls[0] < 5 || calls[1] < 5) && now_ns() < end) {
        for (auto& client : clients) client->observe("left 40");
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    clients[0].reset();
    clients[1].reset();
    tell({{"event", "two"}, {"first", calls[0].load()}, {"second", calls[1].load()}});
    return 0;
}

}  // namespace

int main(int count, char** words) {
    std::ios::sync_with_stdio(false);  // else nobody knows which lines wait in a buffer
    std::cin.tie(nullptr);             // it would flush beside another thread that tells
    std::map<std::string, std::string> given;
    for (int i = 2; i + 1 < count; i += 2) given[words[i] + 2] = words[i + 1];
    const std::string mode = count > 1 ? words[1] : "";
    if (mode == "filter") return filter();
    if (mode == "two") return two(words[2]);
    return Robot(given).run();
}
