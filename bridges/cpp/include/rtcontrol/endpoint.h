// Where a client may connect, and the keys that it shows there.
#pragma once
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>
#include <cstdio>
#include <memory>
#include "msgpack.h"

namespace rtcontrol {

struct Keys {
    std::string server, ours, secret;  // Z85; empty: no CURVE
};

namespace detail {

// Whether it is `tcp://HOST:PORT`, `ipc://PATH` or `http://HOST:PORT/connect`.
inline Problem check_endpoint(const std::string& one) {
    const size_t colon = one.rfind(':');
    const std::string port = colon != one.npos && colon > 6 ? one.substr(colon + 1) : "";
    const bool number = !port.empty() && port.size() < 6 && port.find_first_not_of("0123456789") == port.npos;
    const bool url = one.rfind("http://", 0) == 0 && one.size() > 7 && one[7] != '/' && one[7] != ':';
    if (one.rfind("https://", 0) == 0)
        return Error{"invalid", "endpoint", one + " needs TLS, which this client has not.",
                     "Write http:// and give the client keys."};
    const bool tcp = one.rfind("tcp://", 0) == 0 && number && std::stoi(port) > 0 && std::stoi(port) < 65536 &&
                     one.find_first_of(", ") == one.npos;
    if (!tcp && !url && (one.rfind("ipc://", 0) != 0 || one.size() == 6))
        return Error{"invalid", "endpoint", one + " is no endpoint.",
                     "Write one such as tcp://127.0.0.1:5555 or ipc:///tmp/rtcontrol."};
    return {};
}

// One key of a file that `rtcontrol keys new NAME` wrote. What stands in the file is in no error.
inline Problem read_key(const std::string& path, const std::string& name, bool secret, std::string& key) {
    const auto wrong = [&](const std::string& what, const std::string& remedy) {
        return Error{"invalid", "keys", path + " " + what + ".", remedy};
    };
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
    struct stat state = {};
    if (!file || fstat(fileno(file.get()), &state) != 0 || !S_ISREG(state.st_mode))
        return wrong("cannot be read", "Give a key file; make one: rtcontrol keys new NAME");
    if (secret && (state.st_mode & 077) != 0)
        return wrong("may be read by other users of this machine", "chmod 600 " + path);
    char line[512];
    while (std::fgets(line, sizeof line, file.get())) {
        std::string_view rest(line);
        rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
        const size_t begin = rest.find('"'), end = rest.rfind('"');
        if (rest.substr(0, name.size()) != name || begin == rest.npos || end - begin != 41) continue;
        uint8_t raw[32];
        key = rest.substr(begin + 1, 40);
        if (zmq_z85_decode(raw, key.c_str())) return {};
    }
    return wrong("has no " + name, "Give the right file; make one: rtcontrol keys new NAME");
}

// Without a server's key the answer of GET /connect may bring one: `asks`.
inline Problem read_keys(const std::string& secret_file, std::string server_file, bool asks, Keys& keys) {
    const bool by_hand = !server_file.empty();
    if (!by_hand) server_file = secret_file.substr(0, secret_file.rfind('/') + 1) + "server.key";
    if (!zmq_has("curve")) return Error{"invalid", "keys", "This libzmq has no CURVE.", "Install another libzmq."};
    if (Problem problem = read_key(secret_file, "public-key", true, keys.ours)) return problem;
    if (Problem problem = read_key(secret_file, "secret-key", true, keys.secret)) return problem;
    if (asks && !by_hand && access(server_file.c_str(), F_OK) != 0) return {};
    return read_key(server_file, "public-key", false, keys.server);
}

}  // namespace detail
}  // namespace rtcontrol
