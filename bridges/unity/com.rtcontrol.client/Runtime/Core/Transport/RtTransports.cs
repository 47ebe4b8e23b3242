using System;

namespace RtControl
{
    /// <summary>Which transport an endpoint has, where <see cref="RtOptions.Transport"/> names none.</summary>
    internal static class RtTransports
    {
        /// <summary>Throws WireException for an endpoint that cannot be used, NotSupportedException in a WebGL player.</summary>
        public static Func<string, IRtTransport> Of(RtOptions options)
        {
            if (options.Transport != null) return options.Transport;
            RefuseWebGl();
            string token = RtOptions.Blank(options.Token);
            WsHandshake.CheckToken(token);
            foreach (string endpoint in RtEndpoints.Of(options.Endpoint))
                if (WsAddress.Is(endpoint)) WsTransport.RefuseSecure(new WsAddress(endpoint));
            return endpoint => WsAddress.Is(endpoint) ? (IRtTransport)new WsTransport(endpoint, token) : new ZmtpTransport(endpoint);
        }

        private static void RefuseWebGl()
        {
#if UNITY_WEBGL && !UNITY_EDITOR
            throw new NotSupportedException("WebGL has neither threads nor sockets: set RtOptions.Transport to WebGlTransport.Use(token), as the "
                + "component does, with an endpoint such as ws://192.168.1.5:8080/ws.");
#endif
        }
    }
}
