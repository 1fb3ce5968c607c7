//! Each kind of step: what a plan says is done here, to the cluster, to the network, or to a member.

use std::sync::Arc;
use std::time::Duration;

use cursus_consumer::Commit;

use super::{End, Member, World, topic_partition};
use crate::network::Way;
use crate::oracle::{GROUP, TOPIC};
use crate::plan::{Style, What};

impl World<'_> {
    fn live_member(&self, member: usize) -> Option<&Member> {
        self.members.get(&member).filter(|member| member.closing.is_none())
    }

    fn port(&self, broker: usize) -> u16 {
        9000 + u16::try_from(broker).unwrap_or(0)
    }

    fn block(&mut self, ways: Vec<(usize, u16, Way)>, ms: u64) {
        ways.iter().for_each(|(host, port, way)| self.network.block(*host, *port, *way));
        self.lasts(ms, End::Open(ways));
    }

    /// Does it; whether it could be done.
    pub(super) async fn carry_out(&mut self, what: &What) -> bool {
        self.bury().await;
        let both = [Way::ToBroker, Way::ToMember];
        let cluster = self.cluster.clone();
        match what {
            What::Produce { partition, count } => {
                let from = self.oracle.end(*partition);
                self.oracle.written(*partition, *count, true);
                let records = (from..from + count).map(|offset| ("", format!("{partition}:{offset}")));
                cluster.produce(TOPIC, *partition, records).is_ok()
            }
            What::Marker { partition } => {
                self.oracle.written(*partition, 1, false);
                cluster.append_marker(TOPIC, *partition).is_ok()
            }
            What::Aborted { partition, count } => {
                self.oracle.written(*partition, count + 1, false);
                cluster.append_aborted(TOPIC, *partition, (0..*count).map(|_| ("", "aborted"))).is_ok()
            }
            What::Retention { partition } if self.plan.reset == "earliest" => {
                let earliest = self.draw.below(self.oracle.end(*partition) + 1);
                self.oracle.forgotten(*partition, earliest);
                cluster.delete_records(TOPIC, *partition, earliest).is_ok()
            }
            What::Start { member } if !self.members.contains_key(member) => {
                self.start(*member);
                true
            }
            What::Close { member, timeout_ms } => {
                let Some(found) = self.live_member(*member) else { return false };
                let closing = self.close(found, Duration::from_millis(*timeout_ms), false);
                self.members.get_mut(member).is_some_and(|member| member.closing.replace(closing).is_none())
            }
            What::Drop { member } | What::Kill { member } => {
                if self.live_member(*member).is_none() {
                    return false;
                }
                let Some(Member { host, consumer, tasks, .. }) = self.members.remove(member) else { return false };
                if matches!(what, What::Kill { .. }) {
                    self.network.kill(host);
                }
                self.oracle.forget(host);
                for task in tasks {
                    task.abort();
                    self.oracle.join(format_args!("host {host}"), task).await;
                }
                drop(consumer);
                true
            }
            What::Seek { member, partition, by } => {
                let Some(found) = self.live_member(*member) else { return false };
                let partition = topic_partition(*partition);
                let Some(position) = found.consumer.position(&partition) else { return false };
                let to = position.saturating_add_signed(*by).min(self.oracle.end(partition.partition));
                if found.consumer.seek(&partition, to).is_err() {
                    return false;
                }
                self.oracle.sought(found.host, &found.consumer, partition.partition, position, to);
                true
            }
            What::Pause { member, partition, ms } => {
                let Some(found) = self.live_member(*member) else { return false };
                let partition = topic_partition(*partition);
                if found.consumer.pause(std::slice::from_ref(&partition)).is_err() {
                    return false;
                }
                self.lasts(*ms, End::Resume(*member, partition));
                true
            }
            What::Ask { member } => {
                let Some(found) = self.live_member(*member) else { return false };
                let (consumer, oracle, host) = (Arc::clone(&found.consumer), Arc::clone(&self.oracle), found.host);
                let handlers = self.plan.members[*member].style == Style::Handlers;
                self.restarts.push(tokio::spawn(async move {
                    let (time, first) = (Duration::from_secs(2), topic_partition(0));
                    let questions = async {
                        tokio::join!(
                            consumer.committed(&first, Some(time)),
                            consumer.lag(Some(time)),
                            consumer.describe_group(Some(time)),
                        )
                    };
                    oracle.within("questions end by their timeout", host, time, questions).await;
                    if handlers {
                        // Beside them it means what they have finished, at any moment.
                        let commit = consumer.commit(Commit::All, Some(time));
                        let result = oracle.within("commits end by their timeout", host, time, commit).await;
                        oracle.note(format_args!("host {host} commits all beside handlers: {result:?}"));
                    }
                }));
                true
            }
            What::Isolate { member, ms } => {
                let Some(host) = self.live_member(*member).map(|member| member.host) else { return false };
                let ports: Vec<u16> = (0..self.plan.brokers).map(|broker| self.port(broker)).collect();
                self.block(ports.into_iter().flat_map(|port| both.map(|way| (host, port, way))).collect(), *ms);
                true
            }
            What::Unreachable { broker, ms } => {
                let port = self.port(*broker);
                let hosts: Vec<usize> = self.members.values().map(|member| member.host).collect();
                self.block(hosts.into_iter().flat_map(|host| both.map(|way| (host, port, way))).collect(), *ms);
                true
            }
            What::Partition { member, broker, ms } => {
                let Some(host) = self.live_member(*member).map(|member| member.host) else { return false };
                let port = self.port(*broker);
                self.block(both.map(|way| (host, port, way)).to_vec(), *ms);
                true
            }
            What::OneWay { member, broker, to_broker, ms } => {
                let Some(host) = self.live_member(*member).map(|member| member.host) else { return false };
                let way = if *to_broker { Way::ToBroker } else { Way::ToMember };
                let port = self.port(*broker);
                self.block(vec![(host, port, way)], *ms);
                true
            }
            What::Reset { broker } => {
                let (port, draw) = (self.port(*broker), self.draw.clone());
                self.network.reset(|_, other| other == port && draw.one_in(2));
                true
            }
            What::Slow { by_ms, ms } => {
                self.network.slow_down(Duration::from_millis(*by_ms));
                self.lasts(*ms, End::SpeedUp);
                true
            }
            What::KillBroker { broker, ms } => {
                let done = cluster.kill_broker(*broker).await.is_ok();
                self.lasts(*ms, End::Restart(*broker));
                done
            }
            What::StopBroker { broker, ms } => {
                let done = cluster.stop_broker(*broker).await.is_ok();
                self.lasts(*ms, End::Restart(*broker));
                done
            }
            What::PauseBroker { broker, ms } => {
                let done = cluster.pause_broker(*broker).is_ok();
                self.lasts(*ms, End::GoOn(*broker));
                done
            }
            What::DelayBroker { broker, by_ms, ms } => {
                let done = cluster.delay(Some(*broker), Duration::from_millis(*by_ms)).is_ok();
                self.lasts(*ms, End::Undelay(*broker));
                done
            }
            What::MoveCoordinator { broker } => cluster.move_coordinator(GROUP, *broker).is_ok(),
            What::MoveLeader { partition, broker } => cluster.move_leader(TOPIC, *partition, *broker).is_ok(),
            What::Fail { command, times, error } => cluster.fail_next(command, *times, error).is_ok(),
            What::LoseReply { command, times } => cluster.lose_reply(command, *times).is_ok(),
            What::RepeatReply { command, times } => cluster.repeat_reply(command, *times).is_ok(),
            What::Corrupt { command, times } => cluster.corrupt_next(command, *times).is_ok(),
            What::Hold { command, ms } => {
                let hold = cluster.hold(command);
                self.lasts(*ms, End::Release(hold));
                true
            }
            What::Expire { nth } => {
                let members = cluster.group(GROUP).map(|group| group.members).unwrap_or_default();
                let Some(member) = members.keys().nth(nth % members.len().max(1)) else { return false };
                cluster.expire_member(GROUP, member).is_ok()
            }
            What::CloseStreams { reason } => cluster.close_streams(reason).is_ok(),
            What::Freeze { broker } => cluster.freeze_connections(Some(*broker)).is_ok(),
            What::Swap { one, other } => one != other && cluster.swap_addresses(*one, *other).is_ok(),
            What::Advance { ms } => {
                cluster.advance(Duration::from_millis(*ms));
                true
            }
            What::Retention { .. } | What::Start { .. } => false,
        }
    }
}
