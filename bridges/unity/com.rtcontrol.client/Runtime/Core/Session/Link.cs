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

        // Of several servers behind GET /connect, one that does not come up in this time is left for the next.
        private const long ConnectNs = 2000000000L;
        private const int Turn = 64;

        public readonly object Lock = new object();
        public readonly Talk Talk;

        private readonly Random _random = new Random();
        private readonly Thread _thread;
        private volatile TcpTransport _transport;
        private volatile bool _closing;
        private volatile bool _up;
        private volatile string _trouble = "nobody answers";
        private volatile string _address; // where the newest connection goes
        private readonly bool _several; // servers to go to
        private bool _asked; // an answer of GET /connect named this server
        private string _lost; // one that was silent, or did not come up
        private int _attempts;
        private long _retryNs, _openedNs;
        private readonly ManualResetEvent _nudge = new ManualResetEvent(false);

        public Link(RtOptions options)
        {
            _several = ConnectRequest.IsUrl(options.Endpoint);
            Talk = new Talk(options) { Several = _several };
            // Here, so that a mistake in the endpoint is told to the caller.
            Open(options.Endpoint);
            _thread = new Thread(Run) { IsBackground = true, Name = "rtcontrol" };
            _thread.Start();
        }

        /// <summary>Why the session is not live, for people; null where it is.</summary>
        public string Trouble
        {
            get { return Talk.Open ? null : Talk.Ended ?? (_up ? Talk.Refusal : null) ?? _trouble; }
        }

        /// <summary>Where the newest connection goes.</summary>
        public string Address
        {
            get { return _address; }
        }

        /// <summary>Something is to be said.</summary>
        public void Wake()
        {
            TcpTransport transport = _transport;
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
            catch (Exception error)
            {
                Fail(error);
            }
            finally
            {
                Leave();
            }
        }

        // A fault of ours must end safe, not silently.
        private void Fail(Exception error)
        {
            lock (Lock) Talk.End("The client failed (" + error.GetType().Name + ": " + error.Message + "). Make another one, and report it.");
        }

        private void Leave()
        {
            RtMap bye;
            lock (Lock)
            {
                bye = Talk.Open ? Talk.Bye("closed") : null;
                Talk.End("The client was closed.");
            }
            TcpTransport transport = _transport;
            if (transport == null) return;
            if (bye != null) transport.Send(Codec.Encode(bye));
            transport.Close(LingerMs);
            _transport = null;
        }

        // Bytes are read, written and turned into messages without the lock: the main thread never waits for that.
        private void OneTurn()
        {
            if (_transport != null) Carry();
            bool connect;
            int waitMs;
            lock (Lock)
            {
                long nowNs = MonotonicClock.NowNs;
                Talk.Look(nowNs);
                connect = _transport == null && Talk.Ended == null && nowNs >= _retryNs;
                long wakeNs = nowNs + 500000000L;
                if (_up) wakeNs = Math.Min(wakeNs, Talk.WakeNs());
                else if (Talk.Rule.ExpiresNs != InForce.Never) wakeNs = Math.Min(wakeNs, Talk.Rule.ExpiresNs + 1);
                // Timers stand still while the machine is suspended: look again soon while a call may expire.
                if (Talk.Rule.ExpiresNs != InForce.Never) wakeNs = Math.Min(wakeNs, nowNs + 50000000L);
                if (_transport == null && Talk.Ended == null) wakeNs = Math.Min(wakeNs, _retryNs);
                else if (!_up && _several) wakeNs = Math.Min(wakeNs, _openedNs + ConnectNs + 1);
                // Rounded up: a timer that fires too early would spin.
                waitMs = (int)Math.Max(0, (wakeNs - nowNs + 999999) / 1000000);
            }
            if (connect) Connect();
            else if (_transport != null) _transport.Wait(waitMs);
            else _nudge.WaitOne(waitMs);
        }

        private void Connect()
        {
            if (_several)
                lock (Lock) Talk.Elsewhere();
            Open(Talk.Options.Endpoint);
        }

        private void Open(string endpoint)
        {
            _address = endpoint;
            _asked = false;
            _transport = ConnectRequest.IsUrl(endpoint) ? new ConnectRequest(endpoint, Talk.Options, _lost) : Talk.Options.Transport(endpoint);
            _openedNs = MonotonicClock.NowNs;
        }

        private void Answered(ConnectAnswer answer)
        {
            if (answer.Address == null)
            {
                Lose(answer.Why);
                _retryNs = Math.Max(_retryNs, MonotonicClock.NowNs + answer.RetryS * 1000000000L);
                return;
            }
            _transport.Close(0);
            Open(answer.Address);
            _asked = true;
            lock (Lock)
                if (Talk.SessionAddress != answer.Address) Talk.Forget();
        }

        private void Carry()
        {
            bool late = _several && !_up && MonotonicClock.NowNs - _openedNs > ConnectNs;
            if (_transport.State == TransportState.Connecting && !late) return;
            if (_transport.State == TransportState.Lost || late)
            {
                if (_asked && !_up) _lost = _address;
                Lose(_transport.Trouble);
                return;
            }
            var request = _transport as ConnectRequest;
            if (request != null)
            {
                Answered(request.Answer);
                return;
            }
            if (!_up)
            {
                _trouble = _transport.Trouble;
                lock (Lock)
                {
                    Talk.Address = _address;
                    Talk.Connected(MonotonicClock.NowNs);
                }
            }
            _up = true;
            Hear();
            bool silent;
            string leaves;
            List<RtMap> due;
            lock (Lock)
            {
                long nowNs = MonotonicClock.NowNs;
                silent = Talk.Silent(nowNs);
                leaves = Talk.Leaves;
                due = silent || leaves != null ? new List<RtMap>() : Talk.Due(nowNs);
                if (silent && Talk.Open) _trouble = "the server is silent";
            }
            Say(due);
            if (silent && _asked) _lost = _address;
            if (silent || leaves != null) Lose(leaves ?? _trouble);
        }

        private void Hear()
        {
            // Bounded, so that a flood cannot keep what is in force from ending.
            for (var i = 0; i < Turn; i++)
            {
                List<byte[]> parts = _transport.Receive();
                if (parts == null) return;
                RtMap message = null;
                try
                {
                    message = Codec.Decode(parts);
                }
                catch (WireException)
                {
                    // counted below
                }
                lock (Lock)
                {
                    long nowNs = MonotonicClock.NowNs;
                    if (message != null) Talk.Hear(message, nowNs);
                    else Talk.Counts.Ignored++;
                    // A welcome, not just any answer: else one that turns us away were asked ten times a second.
                    if (Talk.Open)
                    {
                        _attempts = 0;
                        _lost = null;
                    }
                    Talk.Look(nowNs);
                }
            }
        }

        private void Say(List<RtMap> due)
        {
            for (var i = 0; i < due.Count; i++)
            {
                bool sent = _transport.Send(Codec.Encode(due[i]));
                lock (Lock)
                {
                    if (sent) Talk.Said(MonotonicClock.NowNs);
                    else Talk.Unsaid(due.GetRange(i, due.Count - i), MonotonicClock.NowNs);
                }
                if (!sent) return;
            }
        }

        private void Lose(string trouble)
        {
            _trouble = trouble;
            _transport.Close(0);
            _transport = null;
            bool atOnce;
            lock (Lock)
            {
                if (_up) Talk.Lost();
                atOnce = Talk.AtOnce;
                Talk.AtOnce = false;
            }
            _up = false;
            int pauseMs = Math.Min(LongestPauseMs, FirstPauseMs << Math.Min(_attempts, 10));
            if (atOnce) pauseMs = 0;
            else _attempts++;
            _retryNs = MonotonicClock.NowNs + (long)(pauseMs * (0.5 + 0.5 * _random.NextDouble()) * 1e6);
        }
    }
}
