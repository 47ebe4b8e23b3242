using System;
using System.Collections.Generic;

namespace RtControl
{
    /// <summary>Where a client may connect: one endpoint or URL of GET /connect, or several with commas between them.</summary>
    internal static class RtEndpoints
    {
        /// <summary>
        /// In their order. Throws WireException where one of several is none, is empty, comes twice, or names no port.
        /// </summary>
        public static IList<string> Of(string text)
        {
            if (text == null || text.IndexOf(',') < 0) return new[] { text };
            var found = new List<string>();
            foreach (string place in text.Split(','))
            {
                string one = place.Trim();
                if (one.Length == 0) throw Wrong("an empty place among the endpoints: write one comma between two endpoints");
                if (found.Contains(one)) throw Wrong(one + " comes twice: name each server once");
                string host;
                int port;
                if (!ConnectRequest.IsUrl(one)) ZmtpTransport.Parse(one, out host, out port);
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
