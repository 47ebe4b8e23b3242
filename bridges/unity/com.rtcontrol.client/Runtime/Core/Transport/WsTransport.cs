using System;
using System.Collections.Generic;
using System.Net;
using System.Net.Sockets;
using System.Security.Cryptography;

namespace RtControl
{
    /// <summary>
    /// A WebSocket (RFC 6455) over TCP, all in managed code: for phones and headsets on the network of a server with
    /// `--http` and an access token. Messages are JSON. Not encrypted: `wss://` is refused.
    /// </summary>
    public sealed class WsTransport : TcpTransport
    {
        private static readonly byte[] NormalEnd = { 0x03, 0xe8 }; // 1000

        private readonly WsFrames _frames = new WsFrames();
        private readonly RandomNumberGenerator _random = new RNGCryptoServiceProvider();
        private readonly WsHandshake _handshake;

        /// <summary>
        /// Begins to connect. <paramref name="token"/>: the server's access token; null: none. Throws WireException where
        /// the endpoint or the token is none.
        /// </summary>
        public WsTransport(string endpoint, string token = null) : this(new WsAddress(endpoint), endpoint, token, null)
        {
        }

        internal WsTransport(WsAddress address, string endpoint, string token, IEnumerable<IPAddress> addresses)
            : base(endpoint, address.Host, address.Port, addresses)
        {
            RefuseSecure(address);
            _handshake = new WsHandshake(address, token, _random);
            Append(_handshake.Request());
            Begin();
        }

        public override bool Json
        {
            get { return true; }
        }

        internal override string ClosedEarly
        {
            get { return "the peer closed the connection at once: it is no rtcontrol server, or its --http is at another port"; }
        }

        /// <summary>Throws WireException for `wss://`.</summary>
        internal static void RefuseSecure(WsAddress address)
        {
            if (address.Secure)
                throw new WireException(WireException.Invalid, "endpoint", "wss:// is spoken in a browser (WebGL) alone: write ws://, "
                    + "within a network that you trust, or through a tunnel such as WireGuard or ssh");
        }

        internal override void Feed(byte[] bytes, int count)
        {
            _frames.Feed(bytes, count);
        }

        internal override bool Shake()
        {
            int answered = _handshake.Answered(_frames.Buffer, _frames.Start, _frames.Count);
            _frames.Skip(answered);
            return answered > 0;
        }

        internal override List<byte[]> Take()
        {
            List<byte[]> message;
            try
            {
                message = _frames.Next();
            }
            catch (PeerException)
            {
                TrySayFarewell();
                throw;
            }
            while (_frames.Pings.Count > 0)
            {
                byte[] body = _frames.Pings.Dequeue();
                if (Waiting < RtLimits.MaxMessageBytes) Frame(WsFrames.Pong, body);
            }
            return message;
        }

        internal override void Put(IList<byte[]> parts)
        {
            Frame(WsFrames.Text, parts[0]);
        }

        internal override void Farewell()
        {
            Frame(WsFrames.CloseCode, NormalEnd);
        }

        // The peer may be gone already; what it did is the reason to be told.
        private void TrySayFarewell()
        {
            try
            {
                Farewell();
                Flush();
            }
            catch (Exception error) when (error is PeerException || error is SocketException || error is ObjectDisposedException)
            {
                // the connection ends anyway
            }
        }

        private void Frame(byte kind, byte[] body)
        {
            var mask = new byte[4];
            _random.GetBytes(mask);
            Append(WsFrames.Masked(kind, body, mask));
        }
    }
}
