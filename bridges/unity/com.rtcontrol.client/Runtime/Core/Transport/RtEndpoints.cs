using System;
using System.Collections.Generic;

namespace RtControl
{
    /// <summary>Where a client may connect: one endpoint, or several with commas between them.</summary>
    internal static class RtEndpoints
    {
        /// <summary>
        /// In their order. Throws WireException where one of several is none, is empty, comes twice, or names no port.
        /// </summary>
        public static IList<string> Of(string text)
        {
            // A path may have commas.
            bool onePath = text != null && text.StartsWith("ipc://", StringComparison.Ordinal) && text.IndexOf("://", 6, StringComparison.Ordinal) < 0;
            if (text == null || onePath || text.IndexOf(',') < 0) return new[] { text };
            var found = new List<string>();
            foreach (string place in text.Split(','))
            {
                string one = place.Trim();
                if (one.Length == 0) throw Wrong("an empty place among the endpoints: write one comma between two endpoints");
                if (found.Contains(one)) throw Wrong(RtWebSocket.Shown(one) + " comes twice: name each server once");
                string host;
                int port;
                if (WsAddress.Is(one)) new WsAddress(one);
                else if (!one.StartsWith("ipc://", StringComparison.Ordinal)) ZmtpTransport.Parse(one, out host, out port);
                found.Add(one);
            }
            return found;
        }

        private static WireException Wrong(string why)
        {
            return new WireException(WireException.Invalid, "endpoint", why);
        }
    }
}
