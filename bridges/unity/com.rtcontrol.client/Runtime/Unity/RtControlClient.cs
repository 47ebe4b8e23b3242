using System;
using System.Collections.Generic;
using System.Text;
using UnityEngine;

namespace RtControl.Unity
{
    /// <summary>
    /// Lets an rtcontrol server drive this GameObject: the [RtTool] methods of its components are the tools, its
    /// IRtObserver says what there is to see. Calls are carried out in Update; nothing here waits for the network.
    /// </summary>
    [AddComponentMenu("rtcontrol/RtControl Client")]
    [DisallowMultipleComponent]
    public sealed class RtControlClient : MonoBehaviour
    {
        [Tooltip("Of `rtcontrol serve`: tcp://HOST:PORT of --bind, or http://HOST:PORT/connect of replicas.")]
        [SerializeField] private string endpoint = "tcp://127.0.0.1:5555";

        [Tooltip("The goal in words.")]
        [TextArea]
        [SerializeField] private string instruction = "";

        [Tooltip("Decisions a second.")]
        [Range(1f, 100f)]
        [SerializeField] private float hz = 16f;

        [Tooltip("How old, from its observation, a call may be, in ms. 0: as the server says.")]
        [SerializeField] private float ttlMs;

        [Tooltip("One of the server's agents. Empty: the tools of the components.")]
        [SerializeField] private string agent = "";

        [Tooltip("One of the server's models. Empty: the server's choice.")]
        [SerializeField] private string model = "";

        [Tooltip("An exclusive name, refused to a second client. Empty: none.")]
        [SerializeField] private string robot = "";

        [Tooltip("Open a new session when the server ends this one, such as for its restart.")]
        [SerializeField] private bool persist = true;

        [Tooltip("Components whose [RtTool] methods are the tools. Empty: all of this GameObject.")]
        [SerializeField] private MonoBehaviour[] toolsOf = new MonoBehaviour[0];

        private const double TroubleSeconds = 2.0;
        private const int LastTries = 10;
        private static readonly List<RtControlClient> Live = new List<RtControlClient>();

        private readonly List<IRtObserver> _observers = new List<IRtObserver>();
        private RtToolSet _tools;
        private long _nextNs;
        private string _trouble, _told;
        private double _troubleSince;
        private RtWelcome _welcome;
        private bool _paused;

        /// <summary>After each act was given to the tools; its Call is null where there is no safe call.</summary>
        public event Action<RtAct> Acted;

        /// <summary>A session began or went on.</summary>
        public event Action<RtWelcome> Welcomed;

        /// <summary>The core's client while this component is enabled, else null.</summary>
        public RtClient Client { get; private set; }

        public string Endpoint
        {
            get { return endpoint; }
            set { endpoint = value; }
        }

        /// <summary>The goal in words; may be changed at any time.</summary>
        public string Instruction
        {
            get { return instruction; }
            set
            {
                instruction = value;
                if (Client != null) Client.Instruct(value);
            }
        }

        /// <summary>A new episode: the world was set back, nothing is in force any more.</summary>
        public void ResetEpisode()
        {
            if (Client != null) Client.Reset();
        }

        /// <summary>Closes all clients now: before a domain reload, whose end open sockets would hold up.</summary>
        public static void CloseAll()
        {
            foreach (RtControlClient client in Live.ToArray()) client.Close();
        }

        // Where Play mode begins without a domain reload, statics are those of the time before.
        [RuntimeInitializeOnLoadMethod(RuntimeInitializeLoadType.SubsystemRegistration)]
        private static void Forget()
        {
            CloseAll();
            Live.Clear();
        }

        private void OnEnable()
        {
            try
            {
                Open();
            }
            catch (Exception error) when (error is WireException || error is RtToolException)
            {
                Debug.LogError("rtcontrol: " + error.Message, this);
                enabled = false;
            }
        }

        private void Open()
        {
            _observers.Clear();
            var targets = new List<object>();
            foreach (MonoBehaviour component in GetComponents<MonoBehaviour>())
            {
                if (component == null || component == this) continue;
                var observer = component as IRtObserver;
                if (observer != null) _observers.Add(observer);
                if (toolsOf.Length == 0) targets.Add(component);
            }
            foreach (MonoBehaviour component in toolsOf)
            {
                if (component == null) throw new RtToolException("an entry of Tools Of is empty: fill or remove it.");
                targets.Add(component);
            }
            _tools = new RtToolSet(targets.ToArray());
            var options = new RtOptions
            {
                Endpoint = endpoint, Name = Application.productName, Instruction = instruction, Hz = hz, Agent = agent,
                Model = model, Robot = robot, Persist = persist, SafeCalls = _tools.SafeCalls,
                TtlMs = ttlMs > 0 ? ttlMs : (double?)null,
                Tools = agent.Length > 0 || _tools.Definitions.Count == 0 ? null : _tools.Definitions,
            };
            Client = new RtClient(options, Execute);
            Live.Add(this);
            _nextNs = 0;
            _trouble = _told = "";
            _welcome = null;
        }

        private void Update()
        {
            RtClient client = Client;
            if (client == null) return;
            client.Pump();
            Tell(client);
            // When the world was looked at, not when the words for it were found. Time.timeScale does not slow this clock.
            long stampNs = MonotonicClock.NowNs;
            if (!client.Connected || stampNs < _nextNs) return;
            string text = Look();
            if (text != null) client.Observe(text, stampNs);
            // Just in time for each tick of the server; where those are not known, as often.
            _nextNs = client.NextLookNs() ?? Math.Max(_nextNs + (long)(1e9 / Math.Max(hz, 0.001f)), stampNs);
        }

        // One observation of all observers: of two, the server would take the newer one alone.
        private string Look()
        {
            string first = null;
            StringBuilder all = null;
            foreach (IRtObserver observer in _observers)
            {
                string text = observer.Observe();
                if (text == null) continue;
                if (first == null) first = text;
                else all = (all ?? new StringBuilder(first)).Append('\n').Append(text);
            }
            return all == null ? first : all.ToString();
        }

        private void OnDisable()
        {
            _paused = false;
            Close();
        }

        // A phone may sleep then: the clock by which calls grow old stands still, and the system takes sockets away.
        private void OnApplicationPause(bool paused)
        {
            if (!paused && _paused) OnEnable();
            _paused = paused && Client != null;
            if (paused) Close();
        }

        private void OnDestroy()
        {
            Close();
        }

        private void OnApplicationQuit()
        {
            Close();
        }

        private void Close()
        {
            RtClient client = Client;
            if (client == null) return;
            Client = null;
            Live.Remove(this);
            client.Dispose();
            // The last act is safe: nobody would carry it out later, nor try it again.
            for (var i = 0; i < LastTries && client.Pump(); i++) { }
        }

        private string Execute(RtAct act)
        {
            try
            {
                return _tools.Execute(act);
            }
            catch (Exception error) when (!(error is RtRefusedException))
            {
                // Once, not with each frame in which it is tried again.
                if (act.Attempt == 1) Debug.LogException(error, this);
                throw;
            }
            finally
            {
                if (Acted != null) Acted(act);
            }
        }

        private void Tell(RtClient client)
        {
            RtWelcome welcome = client.Welcome;
            if (welcome != null && welcome != _welcome)
            {
                _welcome = welcome;
                foreach (object warning in welcome.Warnings) Debug.LogWarning("rtcontrol: " + warning, this);
                if (Welcomed != null) Welcomed(welcome);
            }
            string trouble = client.Trouble;
            double now = Time.unscaledTimeAsDouble;
            if (trouble != _trouble) _troubleSince = now;
            _trouble = trouble;
            // Once for each kind of trouble, not once a frame, and not while a connection is just being made.
            bool lasts = trouble == null || client.Ended != null || now - _troubleSince > TroubleSeconds;
            if (trouble == _told || !lasts) return;
            _told = trouble;
            if (trouble == null) Debug.Log("rtcontrol: connected to " + client.Address, this);
            else Debug.LogWarning("rtcontrol: " + trouble + " (" + client.Address + ")", this);
        }
    }
}
