using System;
using System.Collections.Generic;
using System.Globalization;
using System.Security.Cryptography;
using System.Text;

namespace RtControl
{
    /// <summary>The opening of a WebSocket (RFC 6455, section 4): what is asked, and whether the answer says yes.</summary>
    internal sealed class WsHandshake
    {
        private const string Known = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
        private const int MaxAnswerBytes = 16384;

        private readonly WsAddress _address;
        private readonly string _token;
        private readonly string _key;

        /// <summary>Throws WireException for a token that no server gives.</summary>
        public WsHandshake(WsAddress address, string token, RandomNumberGenerator random)
        {
            _address = address;
            _token = token;
            CheckToken(token);
            var nonce = new byte[16];
            random.GetBytes(nonce);
            _key = Convert.ToBase64String(nonce);
        }

        /// <summary>Throws WireException where the token cannot stand in a request.</summary>
        public static void CheckToken(string token)
        {
            foreach (char c in token ?? "")
                if (!(c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || "-_.~".IndexOf(c) >= 0))
                    throw new WireException(WireException.Invalid, "token", "an access token has letters, digits and -_.~ alone: copy it whole, without spaces");
        }

        public byte[] Request()
        {
            var lines = new StringBuilder("GET " + _address.Path + " HTTP/1.1\r\nHost: " + _address.Authority + "\r\nUpgrade: websocket\r\n");
            lines.Append("Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ").Append(_key);
            lines.Append("\r\nSec-WebSocket-Protocol: ").Append(RtWebSocket.Protocols(_token).Replace(",", ", "));
            return Encoding.ASCII.GetBytes(lines.Append("\r\n\r\n").ToString());
        }

        /// <summary>How many bytes the answer has, 0 where it is not whole yet. Throws PeerException where it does not say yes.</summary>
        public int Answered(byte[] bytes, int start, int count)
        {
            int end = -1;
            for (int i = start; i + 3 < start + count && end < 0; i++)
                if (bytes[i] == '\r' && bytes[i + 1] == '\n' && bytes[i + 2] == '\r' && bytes[i + 3] == '\n') end = i + 4;
            string text = Encoding.ASCII.GetString(bytes, start, Math.Min(end < 0 ? count : end - start, MaxAnswerBytes));
            const string http = "HTTP/1.1 ";
            int compared = Math.Min(text.Length, http.Length);
            if (string.CompareOrdinal(text, 0, http, 0, compared) != 0) throw new PeerException("the peer speaks no WebSocket");
            if (end < 0)
            {
                if (count >= MaxAnswerBytes) throw new PeerException("the peer's answer to the handshake has no end");
                return 0;
            }
            Check(text.Split(new[] { "\r\n" }, StringSplitOptions.None));
            return end - start;
        }

        private void Check(string[] lines)
        {
            string status = lines[0].Substring(9);
            if (!status.StartsWith("101 ", StringComparison.Ordinal) && status != "101") throw new PeerException(Refused(status));
            var headers = new Dictionary<string, string>(StringComparer.OrdinalIgnoreCase);
            for (var i = 1; i < lines.Length && lines[i].Length > 0; i++)
            {
                int colon = lines[i].IndexOf(':');
                if (colon < 1) throw new PeerException("the peer's answer to the handshake is no HTTP");
                string name = lines[i].Substring(0, colon), value = lines[i].Substring(colon + 1).Trim(' ', '\t'), before;
                headers[name] = headers.TryGetValue(name, out before) ? before + ", " + value : value;
            }
            if (!Has(headers, "Upgrade", "websocket") || !Has(headers, "Connection", "upgrade"))
                throw new PeerException("the peer's answer to the handshake opens no WebSocket");
            string accept, chosen, extensions;
            headers.TryGetValue("Sec-WebSocket-Accept", out accept);
            if (accept != Accept(_key)) throw new PeerException("the peer's answer is to another handshake (Sec-WebSocket-Accept)");
            if (headers.TryGetValue("Sec-WebSocket-Extensions", out extensions) && extensions.Length > 0)
                throw new PeerException("the peer uses an extension that was not offered: " + Shown(extensions));
            if (headers.TryGetValue("Sec-WebSocket-Protocol", out chosen) && chosen != RtWebSocket.Protocol)
                throw new PeerException("the peer chose a protocol that is not " + RtWebSocket.Protocol + ": " + Shown(chosen));
        }

        private string Refused(string status)
        {
            string what = "the server refuses the WebSocket (HTTP " + Shown(status) + ")";
            string number = status.Split(' ')[0];
            if (number == "401" || number == "403")
                return what + (string.IsNullOrEmpty(_token) ? ": it wants an access token" : ": it does not take this access token");
            if (number == "404") return what + ": the path is not its own, write ws://HOST:PORT/ws";
            if (number == "421") return what + ": it does not know itself as " + _address.Authority;
            return what;
        }

        // SHA-1 without CryptoConfig, whose reflection code stripping breaks.
        private static string Accept(string key)
        {
            using (var hash = new SHA1Managed()) return Convert.ToBase64String(hash.ComputeHash(Encoding.ASCII.GetBytes(key + Known)));
        }

        private static bool Has(Dictionary<string, string> headers, string name, string token)
        {
            string value;
            if (!headers.TryGetValue(name, out value)) return false;
            foreach (string one in value.Split(','))
                if (string.Compare(one.Trim(), token, true, CultureInfo.InvariantCulture) == 0) return true;
            return false;
        }

        private static string Shown(string text)
        {
            return text.Length <= 80 ? text : text.Substring(0, 80);
        }
    }
}
