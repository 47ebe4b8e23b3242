// The client's three threads: one holds the socket, one calls the handler, one writes the log. Shared by them and the
// client, so that a thread that is stuck in foreign code harms nobody.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include "connect.h"

namespace rtcontrol::detail {

class Link : public std::enable_shared_from_this<Link> {
 public:
    Talk talk;
    const Handler handler;
    std::mutex lock;
    std::condition_variable changed;
    bool closing = false;

    Link(Options options, Handler given) : talk(std::move(options)), handler(std::move(given)) {
        if (!talk.ended) talk.ended = check_endpoint(talk.options.endpoint);
        asks_ = is_url(talk.options.endpoint);
        if (!talk.ended && !talk.options.secret_key_file.empty())
            talk.ended = read_keys(talk.options.secret_key_file, talk.options.server_key_file, asks_, keys_);
        if (!talk.ended && pipe(pipe_) != 0) talk.ended = Error{"internal", "", "No pipe can be made.", "Close files."};
        if (talk.ended) talk.note(talk.ended->text());
        for (const int end : pipe_)
            if (end >= 0) fcntl(end, F_SETFL, O_NONBLOCK), fcntl(end, F_SETFD, FD_CLOEXEC);
        talk.several = asks_;
        talk.address = talk.options.endpoint;
    }
    ~Link() {
        for (const int end : pipe_)
            if (end >= 0) ::close(end);
    }
    void start() {
        const std::lock_guard<std::mutex> held(lock);
        sigset_t all, before;  // signals are for the threads of the program
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            threads_[0] = std::thread([self = shared_from_this()] { self->run(); });
            running_++;
            threads_[1] = std::thread([self = shared_from_this()] { self->write_log(); });
            running_++;
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
            threads_[2] = std::thread([self = shared_from_this()] { self->carry_out(); });
            running_++;
        } catch (const std::exception& error) {
            talk.end({"internal", "", std::string("No thread can be started: ") + error.what() + ".", "End others."});
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    void wake() {
        if (pipe_[1] >= 0 && write(pipe_[1], "", 1) < 0) return;  // full: it wakes anyhow
    }
    // What keeps the session from being live; empty where it is. Under the lock.
    std::string trouble() const {
        return talk.open                      ? ""
               : talk.ended                   ? talk.ended->text()
               : up_ && !talk.refusal.empty() ? talk.refusal
                                              : trouble_;
    }
    // Carries out what began to be in force, and is so at this instant.
    bool pump(const Handler& handle) {
        std::unique_lock<std::mutex> held(lock);
        talk.look(now_ns());
        if (!talk.pending) return false;
        const Act act = std::move(*talk.pending);
        talk.pending.reset();
        held.unlock();
        Outcome outcome;
        std::vector<Call> failed;
        for (const Call& call : act.calls.empty() ? std::vector<Call>(1) : act.calls) {
            Outcome one;
            try {
                one = handle(call, act);
            } catch (const std::exception& error) {
                one = Outcome::failed(error.what());
            } catch (...) {
                one = Outcome::failed("It threw something.");
            }
            if (one.kind == Outcome::kDone && !failed.empty()) continue;
            if (one.kind != Outcome::kDone) failed.push_back(call);
            if (act.calls.size() > 1)
                one = {one.kind == Outcome::kDone ? one.kind : Outcome::kFailed, call.name + ": " + one.words};
            outcome = {one.kind, failed.size() > 1 ? outcome.words + "; " + one.words : one.words};
        }
        const char* const names[] = {"executed", "failed", "refused"};
        held.lock();
        int64_t* const counts[] = {&talk.counts.executed, &talk.counts.failed, &talk.counts.refused};
        ++*counts[outcome.kind];
        talk.acknowledge(act, names[outcome.kind], outcome.words);
        if (!failed.empty()) talk.note(std::string("A call was ") + names[outcome.kind] + ": " + outcome.words);
        if (outcome.kind == Outcome::kFailed && act.kind == Force::call) talk.give_up(act);
        if (failed.empty() && act.kind == Force::safe && !talk.pending) talk.failing = false;
        if (!failed.empty() && act.kind == Force::safe) talk.again(act, act.calls.empty() ? act.calls : failed);
        again_ns_ = now_ns() + 100 * kMs;
        changed.notify_all();
        held.unlock();
        wake();
        return true;
    }
    // A bye takes a second at most, a safe call five. Whoever does not return by then is left behind. Once for all: a
    // second close waits for what is left of the first one's time, and the client's own threads for nothing.
    void close() {
        std::unique_lock<std::mutex> held(lock);
        if (!closing) close_by_ns_ = now_ns() + 6 * kSecond;
        closing = true;
        wake();
        changed.notify_all();
        const std::thread::id self = std::this_thread::get_id();
        if (self != handler_id_ && self != logger_id_)
            changed.wait_for(held, std::chrono::nanoseconds(std::max<int64_t>(0, close_by_ns_ - now_ns())),
                             [this] { return running_ == 0; });
        std::thread threads[3];
        std::swap(threads, threads_);
        const bool stuck = running_ > 0;
        talk.end({"closed", "", "The client was closed.", "Make another one."});
        held.unlock();
        for (std::thread& one : threads) {
            if (one.joinable() && stuck) one.detach();
            if (one.joinable()) one.join();
        }
    }

 private:
    void run() {
        std::unique_lock<std::mutex> held(lock);
        try {
            while (!closing) held.unlock(), turn(), held.lock();
        } catch (const std::exception& error) {
            if (!held.owns_lock()) held.lock();
            talk.end({"internal", "", std::string("The client failed: ") + error.what() + ".", "Make another one."});
        }
        talk.end({"closed", "", "The client was closed.", "Make another one."});
        const Value bye = talk.bye();
        const bool says = talk.leaves_open && socket_;
        held.unlock();
        disconnect(says && send(encode(bye)) ? 1000 : 0);
        held.lock();
        running_--;
        changed.notify_all();
    }
    // What people are to read, until the other threads have ended. Whoever does not read on keeps no call waiting.
    void write_log() {
        std::unique_lock<std::mutex> held(lock);
        logger_id_ = std::this_thread::get_id();
        while (!closing || running_ > 1 || !talk.log.empty()) {
            if (talk.log.empty()) {
                changed.wait_for(held, std::chrono::milliseconds(500));
                continue;
            }
            const std::string line = std::move(talk.log.front());
            talk.log.pop_front();
            held.unlock();
            try {
                if (talk.options.log) talk.options.log(line);
                else dprintf(STDERR_FILENO, "rtcontrol: %s\n", line.c_str());  // holds no lock of stdio's
            } catch (...) {  // of the user's log
            }
            held.lock();
        }
        ended(logger_id_);
    }
    void ended(std::thread::id& id) {
        id = {};  // another thread may have it next
        running_--;
        changed.notify_all();
    }
    void turn() {
        if (socket_) exchange();
        std::unique_lock<std::mutex> held(lock);
        const int64_t now = now_ns(), expires = talk.rule.expires_ns;
        talk.look(now);
        if (talk.open || talk.ended) troubled_ns_ = now;
        if (now - troubled_ns_ > 5 * kSecond) talk.note("Not connected: " + trouble(), true), troubled_ns_ = now;
        if (talk.pending || !talk.log.empty()) changed.notify_all();
        // Timers stand still while the machine is suspended: look again soon while a call may expire.
        int64_t wake_ns = now + kSecond / 2;
        if (expires != RTC_NEVER) wake_ns = std::min(now + kSecond / 20, expires + 1);
        if (up_) wake_ns = std::min(wake_ns, talk.wake_ns());
        if (!socket_ && !talk.ended) wake_ns = std::min(wake_ns, retry_ns_);
        const bool connects = !socket_ && !talk.ended && now >= retry_ns_;
        const short room = socket_ && talk.waits_for_room() ? ZMQ_POLLOUT : 0;
        held.unlock();
        if (connects) return connect();
        zmq_pollitem_t items[] = {{nullptr, pipe_[0], ZMQ_POLLIN, 0}, {socket_, 0, short(ZMQ_POLLIN | room), 0}};
        // Rounded up: a timer that fires too early would spin.
        if (zmq_poll(items, socket_ ? 2 : 1, long(std::max<int64_t>(0, wake_ns - now + kMs - 1) / kMs)) <= 0) return;
        for (char drained[64]; read(pipe_[0], drained, sizeof drained) > 0;) continue;
        held.lock();
        if (items[1].revents & room) talk.room();
    }
    void connect() {
        std::string endpoint = talk.options.endpoint, server_key = keys_.server;
        if (asks_) {
            const Answer named = request_server(endpoint, talk.options, lost_, keys_);
            if (named.address.empty()) {
                pause();
                retry_ns_ = std::max(retry_ns_, now_ns() + named.retry_ns);
                const std::lock_guard<std::mutex> held(lock);
                trouble_ = named.why;
                return;
            }
            endpoint = named.address;
            if (!named.server_key.empty()) server_key = named.server_key;
        }
        const int64_t most = kMaxMessageBytes;
        context_ = zmq_ctx_new();
        socket_ = context_ ? zmq_socket(context_, ZMQ_DEALER) : nullptr;
        bool good = socket_ && zmq_setsockopt(socket_, ZMQ_MAXMSGSIZE, &most, sizeof most) == 0 &&
                    set(ZMQ_SNDHWM, 64) && set(ZMQ_RCVHWM, 64) && set(ZMQ_LINGER, 0) && set(ZMQ_IMMEDIATE, 1) &&
                    set(ZMQ_RECONNECT_IVL, 100) && set(ZMQ_RECONNECT_IVL_MAX, 2000) &&
                    set(ZMQ_IPV6, endpoint.find('[') != endpoint.npos);
        if (good && !keys_.secret.empty())
            good = set(ZMQ_CURVE_SERVERKEY, server_key) && set(ZMQ_CURVE_PUBLICKEY, keys_.ours) &&
                   set(ZMQ_CURVE_SECRETKEY, keys_.secret);
        good = good && zmq_connect(socket_, endpoint.c_str()) == 0;
        const std::string why =
            good ? "Nobody answers" : std::string("libzmq refuses (") + zmq_strerror(zmq_errno()) + ")";
        if (!good) disconnect(0), pause();
        const std::lock_guard<std::mutex> held(lock);
        talk.address = endpoint;
        if (talk.several) talk.elsewhere();
        if (asks_ && talk.session_address() != endpoint) talk.forget();
        trouble_ = why + " at " + endpoint + (keys_.secret.empty() ? "." : ", or it does not accept this key.");
        opened_ns_ = now_ns();
        reached_ = false;
        up_ = good;
        talk.connected(opened_ns_);
    }
    bool set(int option, int value) { return zmq_setsockopt(socket_, option, &value, sizeof value) == 0; }
    bool set(int option, const std::string& key) {
        return zmq_setsockopt(socket_, option, key.c_str(), key.size() + 1) == 0;
    }
    void disconnect(int linger_ms) {
        if (socket_) set(ZMQ_LINGER, linger_ms), zmq_close(socket_);
        while (context_ && zmq_ctx_term(context_) != 0 && zmq_errno() == EINTR) continue;
        socket_ = context_ = nullptr;
    }
    void pause() {  // growing, and random
        const double share = std::uniform_real_distribution<double>(0.5, 1)(random_);
        retry_ns_ = now_ns() + int64_t(share * double(std::min(2000 * kMs, 100 * kMs << std::min(attempts_++, 5))));
    }
    // Bytes become messages, and messages bytes, without the lock: nobody waits for that.
    void exchange() {
        Parts parts;
        for (int i = 0; i < 64 && receive(parts); i++) {  // bounded, so that a flood cannot keep a call from ending
            Value message;
            const bool good = !decode(parts, message);
            const std::lock_guard<std::mutex> held(lock);
            if (good) talk.hear(message, now_ns());
            else talk.counts.ignored++;
            if (talk.open) attempts_ = 0, lost_.clear();  // a welcome, not just any answer
            talk.look(now_ns());
        }
        std::unique_lock<std::mutex> held(lock);
        const int64_t now = now_ns();
        changed.notify_all();
        const bool silent = talk.silent(now),
                   absent = talk.several && !reached_ && now - opened_ns_ > 2 * kSecond;
        if (absent || silent || talk.ended || !talk.leaves.empty()) {
            if (!talk.leaves.empty()) trouble_ = talk.leaves;
            else if (talk.open) trouble_ = "The server at " + talk.address + " is silent.";
            if (asks_ && (absent || silent)) lost_ = talk.address;
            const bool at_once = talk.at_once;
            talk.lost();
            up_ = false;
            held.unlock();
            disconnect(0);
            pause();
            if (at_once) retry_ns_ = now;
            return;
        }
        const std::vector<Value> due = talk.due(now);
        held.unlock();
        for (auto one = due.begin(); one != due.end(); ++one) {
            const bool sent = send(encode(*one));
            const std::lock_guard<std::mutex> again(lock);
            reached_ = reached_ || sent;
            if (!sent) return talk.unsaid({one, due.end()}, now_ns());
            talk.said(now_ns());
        }
    }
    bool send(const Parts& parts) {
        for (size_t i = 0; i < parts.size(); i++)
            if (zmq_send(socket_, parts[i].data(), parts[i].size(),
                         ZMQ_DONTWAIT | (i + 1 < parts.size() ? ZMQ_SNDMORE : 0)) < 0)
                return false;
        return true;
    }
    bool receive(Parts& parts) {
        parts.clear();
        for (bool more = true; more;) {
            zmq_msg_t part;
            zmq_msg_init(&part);
            const bool got = zmq_msg_recv(&part, socket_, ZMQ_DONTWAIT) >= 0;
            more = got && zmq_msg_more(&part) != 0;
            if (got && parts.size() <= kMaxParts)  // of too many parts, as many as show that
                parts.emplace_back(static_cast<const char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
            zmq_msg_close(&part);
            if (!got) return false;
        }
        return true;
    }
    // The handler. It ends what has expired by itself, too.
    void carry_out() {
        std::unique_lock<std::mutex> held(lock);
        handler_id_ = std::this_thread::get_id();
        for (int64_t end_ns = RTC_NEVER;;) {
            const int64_t now = now_ns(), expires = talk.rule.expires_ns;
            talk.look(now);
            if (closing && end_ns == RTC_NEVER) end_ns = now + kSecond;
            const bool owed = handler && talk.pending, due = owed && (talk.pending->attempt == 1 || now >= again_ns_);
            if (!due) {
                if (closing && talk.ended && (!owed || now >= end_ns)) break;
                int64_t wake_ns = std::min(now + kSecond / 2, owed ? again_ns_ : RTC_NEVER);
                if (expires != RTC_NEVER) wake_ns = std::min(wake_ns, expires + 1);
                changed.wait_for(held, std::chrono::nanoseconds(std::max<int64_t>(1, wake_ns - now)));
                continue;
            }
            held.unlock();
            try {
                pump(handler);
            } catch (...) {  // no memory: the next turn tries again
            }
            held.lock();
        }
        ended(handler_id_);
    }
    Keys keys_;
    bool asks_ = false;  // connections go where the answers of GET /connect say
    std::string lost_;   // a server of an answer that was silent or did not come up
    std::thread threads_[3];
    std::thread::id handler_id_, logger_id_;  // none: it does not run
    int64_t close_by_ns_ = 0;
    int running_ = 0, pipe_[2] = {-1, -1};
    bool up_ = false;  // there is a socket, which libzmq connects
    int64_t again_ns_ = 0;
    std::string trouble_ = "Nobody answers.";
    // The socket's thread alone uses these.
    void *context_ = nullptr, *socket_ = nullptr;
    bool reached_ = false;  // something could be said: libzmq is up before anybody is there
    int attempts_ = 0;
    int64_t retry_ns_ = 0, opened_ns_ = 0, troubled_ns_ = now_ns();
    std::minstd_rand random_{unsigned(now_ns())};
};

}  // namespace rtcontrol::detail
