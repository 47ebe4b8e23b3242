using System;
using System.Collections.Generic;
using System.Threading;

namespace RtControl
{
    /// <summary>
    /// The one thread that owns the connection: connects, reconnects with growing pauses, says what is due, hears, ends
    /// what has expired. <see cref="Lock"/> guards the talk.
    /// </summary>
    internal sealed class Link
    {
        private const int LingerMs = 30;
        private const int JoinMs = 90;
        private const int FirstPauseMs = 100, LongestPauseMs = 2000;
        private const int Turn = 64;

        public readonly object Lock = new object();
        public readonly Talk Talk;

        private readonly Func<string, IRtTransport> _make;
        private readonly string _endpoint;
        private readonly Random _random = new Random();
        private readonly Thread _thread;
        private volatile IRtTransport _transport;
        private volatile bool _closing;
        private bool _up;
        private string _trouble = "nobody answers";
        private int _attempts;
        private long _retryNs;
        private readonly ManualResetEvent _nudge = new ManualResetEvent(false);

        public Link(RtOptions options)
        {
            _make = options.Transport ?? (endpoint => new ZmtpTransport(endpoint));
            _endpoint = options.Endpoint;
            Talk = new Talk(options);
            // Here, so that a mistake in the endpoint is told to the caller.
            _transport = _make(_endpoint);
            _thread = new Thread(Run) { IsBackground = true, Name = "rtcontrol" };
            _thread.Start();
        }

        /// <summary>Why the session is not live, for people; null where it is.</summary>
        public string Trouble
        {
            get { return Talk.Open ? null : Talk.Ended ?? (_up ? Talk.Refusal : null) ?? _trouble; }
        }

        public void Wake()
        {
            IRtTransport transport = _transport;
            if (transport != null) transport.Wake();
        }

        /// <summary>Says bye and ends the thread; under 100 ms.</summary>
        public void Close()
        {
            _closing = true;
            _nudge.Set();
            Wake();
            if (Thread.CurrentThread != _thread) _thread.Join(JoinMs);
        }

        private void Run()
        {
            try
            {
                while (!_closing) OneTurn();
            }
            catch (Exception error) // a fault of ours must end safe, not silently
            {
                lock (Lock) Talk.End("The client failed (" + error.GetType().Name + ": " + error.Message + ").");
            }
            finally
            {
                lock (Lock)
                {
                    if (Talk.Open && _transport != null) Say(Talk.Bye("closed"));
                    Talk.End("The client was closed.");
                }
                if (_transport != null) _transport.Close(LingerMs);
            }
        }

        private void OneTurn()
        {
            int waitMs;
            lock (Lock)
            {
                long nowNs = MonotonicClock.NowNs;
                Talk.Look(nowNs);
                if (_transport != null) Carry(nowNs);
                else if (nowNs >= _retryNs && Talk.Ended == null) _transport = _make(_endpoint);
                long wakeNs = nowNs + 500000000L;
                if (_up) wakeNs = Math.Min(wakeNs, Talk.WakeNs());
                else if (Talk.Rule.ExpiresNs != InForce.Never) wakeNs = Math.Min(wakeNs, Talk.Rule.ExpiresNs + 1);
                if (_transport == null && Talk.Ended == null) wakeNs = Math.Min(wakeNs, _retryNs);
                // Rounded up: a timer that fires too early would spin.
                waitMs = (int)Math.Max(0, (wakeNs - MonotonicClock.NowNs + 999999) / 1000000);
            }
            if (_transport != null) _transport.Wait(waitMs);
            else _nudge.WaitOne(waitMs);
        }

        private void Carry(long nowNs)
        {
            if (_up && Talk.Silent(nowNs)) Lose("the server is silent");
            else if (_transport.State == RtTransportState.Lost) Lose(_transport.Trouble);
            else if (_transport.State == RtTransportState.Up)
            {
                if (!_up)
                {
                    _trouble = "the server says nothing";
                    Talk.Connected(nowNs);
                }
                _up = true;
                Hear();
                Talk.Look(MonotonicClock.NowNs);
                foreach (RtMap message in Talk.Due(MonotonicClock.NowNs)) Say(message);
            }
        }

        private void Hear()
        {
            // Bounded, so that a flood cannot keep what is in force from ending.
            for (var i = 0; i < Turn; i++)
            {
                List<byte[]> parts = _transport.Receive();
                if (parts == null) return;
                try
                {
                    Talk.Hear(Codec.Decode(parts), MonotonicClock.NowNs);
                    _attempts = 0;
                }
                catch (WireException)
                {
                    Talk.Counts.Ignored++;
                }
            }
        }

        private void Say(RtMap message)
        {
            long nowNs = MonotonicClock.NowNs;
            try
            {
                if (_transport.Send(Codec.Encode(message))) Talk.Said(nowNs);
                else Talk.Unsaid(nowNs);
            }
            catch (WireException)
            {
                Talk.Counts.Ignored++; // observations were checked when they were given: a result or reason of a tool
            }
        }

        private void Lose(string trouble)
        {
            _trouble = trouble;
            _transport.Close(0);
            _transport = null;
            if (_up) Talk.Lost();
            _up = false;
            int pauseMs = Math.Min(LongestPauseMs, FirstPauseMs << Math.Min(_attempts, 10));
            _attempts++;
            _retryNs = MonotonicClock.NowNs + (long)(pauseMs * (0.5 + 0.5 * _random.NextDouble()) * 1e6);
        }
    }
}
