using System;

namespace RtControl
{
    /// <summary>What any WebSocket to a server is opened with; for a transport of your own.</summary>
    public static class RtWebSocket
    {
        internal const string Protocol = "rtcontrol.v1";
        internal const string TokenProtocol = "rtcontrol.token.";

        /// <summary>An endpoint for people and logs: without its query, which may hold an access token.</summary>
        public static string Shown(string endpoint)
        {
            // A path of ipc:// may have the sign in a name.
            int query = endpoint == null || endpoint.StartsWith("ipc://", StringComparison.Ordinal) ? -1 : endpoint.IndexOf('?');
            return query < 0 ? endpoint : endpoint.Substring(0, query);
        }

        /// <summary>The address as it is. Throws WireException where it is none.</summary>
        public static string Url(string endpoint)
        {
            new WsAddress(endpoint);
            return endpoint;
        }

        /// <summary>The subprotocols, with commas. Throws WireException for a token that cannot stand in a request.</summary>
        public static string Protocols(string token)
        {
            WsHandshake.CheckToken(token);
            return string.IsNullOrEmpty(token) ? Protocol : Protocol + "," + TokenProtocol + token;
        }
    }
}
