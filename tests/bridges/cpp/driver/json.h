// Writes values as JSON for the driver's output, and reads hex from its input.
#pragma once

#include <rtcontrol/value.h>

#include <cstdio>
#include <string>

inline std::string json(const rtcontrol::Value& value);

inline std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        char escaped[8];
        std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned char>(c));
        const bool plain = static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\';
        out += plain ? std::string(1, c) : std::string(escaped);
    }
    return out + "\"";
}

inline std::string hex(const std::string& bytes) {
    std::string out;
    for (const char c : bytes) {
        char two[3];
        std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(c));
        out += two;
    }
    return out;
}

inline std::string unhex(const std::string& text) {
    const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
    std::string out;
    for (size_t i = 0; i + 1 < text.size(); i += 2) out += static_cast<char>(16 * digit(text[i]) + digit(text[i + 1]));
    return out;
}

inline std::string json(const rtcontrol::Value& value) {
    std::string out;
    if (const bool* flag = value.as<bool>()) return *flag ? "true" : "false";
    if (const auto* whole = value.as<int64_t>()) return std::to_string(*whole);
    if (const auto* whole = value.as<std::uint64_t>()) return std::to_string(*whole);
    if (const double* number = value.as<double>()) {
        char text[40];
        std::snprintf(text, sizeof text, "%.17g", *number);
        return *number == *number ? text : "null";
    }
    if (value.as<std::string>()) return quoted(value.text());
    if (value.as<rtcontrol::List>()) {
        for (const rtcontrol::Value& one : value.list()) out += (out.empty() ? "" : ", ") + json(one);
        return "[" + out + "]";
    }
    if (value.as<rtcontrol::Map>()) {
        for (const rtcontrol::Entry& entry : value.map())
            out += (out.empty() ? "" : ", ") + quoted(entry.key) + ": " + json(entry.value);
        return "{" + out + "}";
    }
    return "null";
}
