// GET /connect (docs/protocol.md, section 1): the request for a server, and its answer. Plain HTTP alone.
#pragma once
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cctype>
#include <cstring>
#include "endpoint.h"
#include "talk.h"

namespace rtcontrol::detail {

struct Answer {
    std::string address, server_key, why;  // an address, or why there is none; a key only where it is to be used
    int64_t retry_ns = 0;                  // wait at least so long
};
struct Response {
    int status = 0;  // 0: no answer, and `body` says why
    std::string retry_after, body;
};

inline bool is_url(const std::string& text) { return text.rfind("http://", 0) == 0 || text.rfind("https://", 0) == 0; }

// The host of an address or URL: what lies between `://` and the port, without brackets.
inline std::string host_of(const std::string& address) {
    const size_t begin = address.find("://") + 3, end = std::min(address.find('/', begin), address.size());
    const std::string place = address.substr(begin, end - begin);
    if (place.rfind('[', 0) == 0) return place.substr(1, place.find(']') - 1);
    return place.substr(0, place.rfind(':'));
}
inline bool is_loopback(const std::string& host) {
    unsigned char bytes[4];
    int used = 0;
    if (host == "localhost" || host == "::1") return true;
    return sscanf(host.c_str(), "%hhu.%hhu.%hhu.%hhu%n", &bytes[0], &bytes[1], &bytes[2], &bytes[3], &used) == 4 &&
           size_t(used) == host.size() && bytes[0] == 127;
}

// Reads one JSON value; of the outermost object it keeps two fields. False: it is not JSON.
class AnswerReader {
 public:
    std::string address, server_key;
    bool has_address = false, keyed = false, good_key = true;

    explicit AnswerReader(const std::string& text) : at_(text.c_str()), end_(at_ + text.size()) {}
    bool read() {
        space();
        return at_ < end_ && *at_ == '{' && value(0) && (space(), at_ == end_);
    }

 private:
    void space() {
        while (at_ < end_ && std::strchr(" \t\r\n", *at_)) at_++;
    }
    bool take(char one) { return space(), at_ < end_ && *at_ == one && ++at_; }
    bool word(const char* text) {
        const size_t size = std::strlen(text);
        return size_t(end_ - at_) >= size && std::memcmp(at_, text, size) == 0 && (at_ += size);
    }
    bool value(int depth) {
        std::string text;
        space();
        if (at_ == end_ || depth > 32) return false;
        if (*at_ == '"') return string(text);
        if (take('{')) return members(depth);
        if (take('[')) {
            if (take(']')) return true;
            do
                if (!value(depth + 1)) return false;
            while (take(','));
            return take(']');
        }
        return word("null") || word("true") || word("false") || number();
    }
    bool members(int depth) {
        if (take('}')) return true;
        do {
            std::string key, text;
            space();
            if (!string(key) || !take(':')) return false;
            space();
            const bool is_text = at_ < end_ && *at_ == '"', is_null = at_ < end_ && *at_ == 'n';
            if (is_text ? !string(text) : !value(depth + 1)) return false;
            if (depth == 0 && key == "address") has_address = is_text, address = text;
            if (depth == 0 && key == "server_key") keyed = !is_null, good_key = is_text || is_null, server_key = text;
        } while (take(','));
        return take('}');
    }
    bool string(std::string& text) {
        if (at_ == end_ || *at_++ != '"') return false;
        for (; at_ < end_ && *at_ != '"'; at_++) {
            if (static_cast<unsigned char>(*at_) < ' ') return false;
            const bool escaped = *at_ == '\\';
            if (escaped && (++at_ == end_ || !std::strchr("\"\\/bfnrtu", *at_))) return false;
            // No address and no key has an escaped character, but for the slash: a backslash stands for the others.
            text += escaped && *at_ != '/' ? '\\' : *at_;
        }
        return at_ < end_ && *at_++ == '"';
    }
    bool number() {
        char* after = nullptr;
        const char* const begin = at_;
        while (at_ < end_ && std::strchr("+-.0123456789eE", *at_)) at_++;
        const std::string text(begin, at_);
        std::strtod(text.c_str(), &after);
        return !text.empty() && text[0] != '+' && text[0] != '.' && *after == 0;
    }
    const char *at_, *const end_;
};

// What an answer says to a client with these keys: `keys.secret` is its own, `keys.server` the server's by hand.
inline Answer read_answer(const std::string& url, const Response& got, const Keys& keys) {
    if (got.status != 200) {
        const std::string& text = got.retry_after;
        const bool whole = !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == text.npos;
        const std::string why = got.status ? "answers " + std::to_string(got.status) : "does not answer: " + got.body;
        return {"", "", url + " " + why + ".", whole ? std::min<int64_t>(5, std::stol(text)) * kSecond : 0};
    }
    const auto none = [&](const std::string& why) { return Answer{"", "", url + " names " + why + ".", 0}; };
    AnswerReader found(got.body);
    uint8_t raw[32];
    if (got.body.size() > 4096 || !found.read()) return none("no server: it answers no JSON object of 4096 bytes");
    const std::string& address = found.address;
    if (!found.has_address || address.size() > 256 || address.rfind("tcp://", 0) != 0 ||
        address.find_first_of(" ,;*\\") != address.npos || address.find('/', 6) != address.npos ||
        check_endpoint(address))
        return none("no server: its address is not tcp://HOST:PORT");
    const std::string& key = found.server_key;
    const bool decodes = key.size() == 40 && key.find(' ') == key.npos && zmq_z85_decode(raw, key.c_str());
    if (!found.good_key || (found.keyed && !decodes))
        return none("no server: its server_key is not 40 characters of Z85");
    const bool local = is_loopback(host_of(address));
    if (keys.secret.empty()) return local ? Answer{address, "", "", 0} : none(address + ": that needs keys");
    if (!keys.server.empty()) return {address, "", "", 0};
    if (!found.keyed) return local ? Answer{address, "", "", 0} : none(address + " without a key: give the server's");
    if (url.rfind("https://", 0) == 0 || is_loopback(host_of(url))) return {address, found.server_key, "", 0};
    return none("a server key without encryption: give the server's key");
}

// The same for the same tools: 16 hex digits.
inline std::string tools_hint(const Options& options) {
    uint64_t hash = 14695981039346656037u;  // FNV-1a
    std::string text = options.agent;
    for (const Value& tool : options.tools) text += encode(tool)[0];
    for (const char one : text) hash = (hash ^ static_cast<unsigned char>(one)) * 1099511628211u;
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(hash));
    return text.empty() ? "" : hex;
}

inline bool ready(int socket, short what, int64_t until_ns) {
    pollfd one = {socket, what, 0};
    const int64_t left_ms = (until_ns - now_ns()) / kMs;
    return left_ms > 0 && poll(&one, 1, int(left_ms)) > 0;
}

// An open connection that does not block, or -1.
inline int connect_tcp(const std::string& host, const std::string& port, int64_t until_ns) {
    addrinfo hints = {}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return -1;
    int socket = -1;
    for (const addrinfo* one = found; one && socket < 0; one = one->ai_next) {
        socket = ::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol);
        if (socket < 0) continue;
        fcntl(socket, F_SETFL, O_NONBLOCK);
        int error = 0;
        socklen_t size = sizeof error;
        const bool up = connect(socket, one->ai_addr, one->ai_addrlen) == 0 ||
                        (errno == EINPROGRESS && ready(socket, POLLOUT, until_ns) &&
                         getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0);
        if (!up) ::close(socket), socket = -1;
    }
    freeaddrinfo(found);
    return socket;
}

// Status, retry-after and body of what a server sent; `whole` where its content-length has arrived.
inline Response parse_response(const std::string& got, bool& whole) {
    Response response;
    const size_t head = got.find("\r\n\r\n");
    whole = false;
    if (head == got.npos || got.rfind("HTTP/1.", 0) != 0) return {0, "", "it is not a web server"};
    response.status = std::atoi(got.c_str() + std::min<size_t>(9, got.size()));
    response.body = got.substr(head + 4);
    for (size_t at = got.find("\r\n"); at < head;) {
        const size_t end = got.find("\r\n", at + 2), colon = std::min(got.find(':', at), end);
        std::string name = got.substr(at + 2, colon - at - 2);
        std::string text = got.substr(std::min(colon + 1, end), end - std::min(colon + 1, end));
        for (char& one : name) one = char(std::tolower(static_cast<unsigned char>(one)));
        text.erase(0, std::min(text.find_first_not_of(' '), text.size()));
        if (name == "retry-after") response.retry_after = text;
        if (name == "content-length") whole = response.body.size() >= size_t(std::atol(text.c_str()));
        at = end;
    }
    return response;
}

inline Response get(const std::string& url, const std::string& headers, int64_t until_ns) {
    const std::string rest = url.substr(7), place = rest.substr(0, rest.find('/')), host = host_of(url);
    const size_t colon = place.rfind(':');
    const bool ported = colon != place.npos && place.find(']', colon) == place.npos;
    const int socket = connect_tcp(host, ported ? place.substr(colon + 1) : "80", until_ns);
    if (socket < 0) return {0, "", "no connection"};
    const std::unique_ptr<const int, void (*)(const int*)> closes(&socket, [](const int* one) { ::close(*one); });
    std::string request = "GET " + (rest.find('/') == rest.npos ? "/" : rest.substr(rest.find('/'))) +
                          " HTTP/1.0\r\nHost: " + place + "\r\nAccept: application/json\r\n" + headers + "\r\n";
    while (!request.empty()) {
        if (!ready(socket, POLLOUT, until_ns)) return {0, "", "it takes too long"};
        const ssize_t sent = send(socket, request.data(), request.size(), MSG_NOSIGNAL);
        if (sent < 0) return {0, "", "it hung up"};
        request.erase(0, size_t(sent));
    }
    std::string got;
    for (bool whole = false; got.size() < 16384;) {
        char piece[4096];
        if (!ready(socket, POLLIN, until_ns)) return {0, "", "it takes too long"};
        const ssize_t count = recv(socket, piece, sizeof piece, 0);
        if (count < 0) return {0, "", "it hung up"};
        got.append(piece, size_t(count));
        const Response response = parse_response(got, whole);
        if (whole || count == 0) return response;
    }
    return {0, "", "it answers too much"};
}

// Blocks for two seconds at most; the system may take longer to resolve a name.
inline Answer request_server(const std::string& url, const Options& options, const std::string& lost,
                             const Keys& keys) {
    const std::string hint = tools_hint(options);
    const std::string headers = (hint.empty() ? "" : "x-tools: " + hint + "\r\n") +
                                (lost.empty() ? "" : "x-lost: " + lost + "\r\n");
    return read_answer(url, get(url, headers, now_ns() + 2 * kSecond), keys);
}

}  // namespace rtcontrol::detail
