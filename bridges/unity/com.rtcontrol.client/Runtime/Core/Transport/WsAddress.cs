using System;
using System.Globalization;

namespace RtControl
{
    /// <summary>A WebSocket's address, taken apart.</summary>
    internal sealed class WsAddress
    {
        /// <summary>Throws WireException where the text is none.</summary>
        public WsAddress(string text)
        {
            string rest = null;
            Secure = text != null && text.StartsWith("wss://", StringComparison.Ordinal);
            if (Secure) rest = text.Substring(6);
            else if (text != null && text.StartsWith("ws://", StringComparison.Ordinal)) rest = text.Substring(5);
            int slash = rest == null ? -1 : rest.IndexOf('/');
            Authority = slash < 0 ? rest ?? "" : rest.Substring(0, slash);
            Path = slash < 0 ? "/" : rest.Substring(slash);
            int colon = Authority.LastIndexOf(':');
            // Of an IPv6 address alone the last colon is no port's.
            bool named = colon > Authority.LastIndexOf(']');
            string host = named ? Authority.Substring(0, colon) : Authority;
            int port = Secure ? 443 : 80;
            bool fits = rest != null && (!named || int.TryParse(Authority.Substring(colon + 1), NumberStyles.None, CultureInfo.InvariantCulture, out port));
            bool bare = host.IndexOf(':') >= 0 && host.IndexOf('[') < 0;
            host = host.Trim('[', ']');
            const int longest = 255; // what a name's resolver takes
            fits = fits && !bare && host.Length > 0 && host.Length <= longest && port > 0 && port <= 65535;
            foreach (char c in Authority + Path) fits = fits && c > ' ' && c <= '~' && c != '#' && c != '@';
            if (!fits) throw new WireException(WireException.Invalid, "endpoint", "give one such as ws://192.168.1.5:8080/ws");
            Host = host;
            Port = port;
        }

        public bool Secure { get; private set; }
        public string Host { get; private set; }
        public int Port { get; private set; }

        /// <summary>Host and port as they stand in the address: what the request's Host says.</summary>
        public string Authority { get; private set; }

        /// <summary>From the slash on, with the query.</summary>
        public string Path { get; private set; }

        /// <summary>Whether an endpoint is a WebSocket's, by its scheme.</summary>
        public static bool Is(string endpoint)
        {
            return endpoint != null && (endpoint.StartsWith("ws://", StringComparison.Ordinal) || endpoint.StartsWith("wss://", StringComparison.Ordinal));
        }
    }
}
