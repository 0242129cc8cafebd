//! `hlo-dump mcp`: the commands as tools of the Model Context Protocol, over standard input and output.
//!
//! Each call runs a command in a thread of its own, with its streams in memory ([`crate::run`]): one that takes long or
//! fails stops no other. A command reads only below the folder that the server was started in, wherever its arguments
//! or links in that folder point: what opens files asks for that folder ([`crate::streams::below`]).

mod tools;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use meshloom_hlo::suggest::did_you_mean;
use rmcp::ServiceExt;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientJsonRpcMessage, ClientRequest, ContentBlock,
    ErrorData, Implementation, JsonRpcRequest, ListToolsResult, PaginatedRequestParams, ServerCapabilities,
    ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer, RxJsonRpcMessage, ServerInitializeError, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use self::tools::{CommandTool, cut};
use crate::streams::Caller;
use crate::{Ran, output, streams};

/// The stack of a thread that runs a command, as large as that of a program.
const STACK: usize = 8 << 20;

const INSTRUCTIONS: &str = "Tools that read XLA programs (HLO or StableHLO text and protos, XLA dump folders, profiles) \
    below the folder that this server was started in, and say what they do: collectives by mesh axis, bytes and \
    executions; memory; cost; why a value has its sharding; differences; limits. Bytes and operations are whole \
    numbers, times are seconds, and null is a number that is not known. Give \"mesh\" (data=2,fsdp=4) if the program \
    names no mesh.";

/// Serves a program with this command line, until the client closes the input.
pub fn run(program: &clap::Command) -> Result<()> {
    let folder = std::env::current_dir().and_then(|folder| folder.canonicalize()).context("the current folder")?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let server = Server { folder, tools: tools::tools(program).into(), free: Arc::new(Semaphore::new(threads.max(2))) };
    let runtime = Builder::new_current_thread().enable_time().thread_stack_size(STACK).build();
    let runtime = runtime.context("cannot start")?;
    let served = runtime.block_on(async {
        if streams::are_of_process() {
            return server.serve_on(tokio::io::stdin(), tokio::io::stdout()).await;
        }
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let input = streams::read(u64::MAX)?;
        let mut answers = Vec::new();
        let (served, read) =
            tokio::join!(server.serve_on(std::io::Cursor::new(input), ours), theirs.read_to_end(&mut answers));
        read?;
        output::bytes_as_they_are(&answers)?;
        served
    });
    // No client is left for a command that still runs.
    runtime.shutdown_background();
    served
}

#[derive(Clone)]
struct Server {
    /// The folder below which all files are, without links in its path.
    folder: PathBuf,
    tools: Arc<[CommandTool]>,
    /// The number of commands that may begin to run.
    free: Arc<Semaphore>,
}

impl Server {
    async fn serve_on<R, W>(self, read: R, write: W) -> Result<()>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let begins = Begins { transport: AsyncRwTransport::new(read, write), has_begun: false };
        match self.serve(begins).await {
            Ok(running) => {
                running.waiting().await.context("the server failed")?;
                Ok(())
            }
            // A client that closes the input at once wanted nothing.
            Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
            Err(error) => Err(error).context("the client did not begin as the protocol says"),
        }
    }

    /// Runs a tool, as far as to an answer that the client can show.
    async fn call(&self, name: &str, given: Map<String, Value>) -> Result<CallToolResult> {
        let Some(at) = self.tools.iter().position(|tool| tool.name() == name) else {
            let names = || self.tools.iter().map(CommandTool::name);
            let near = did_you_mean(name, names());
            anyhow::bail!("there is no tool \"{name}\"{near}; there are {}", names().collect::<Vec<_>>().join(", "));
        };
        let limit = tools::limit(&self.tools[at], &given)?;
        let line = self.tools[at].command_line(&given)?;
        let caller = Caller { below: Some(self.folder.clone()), ..Caller::default() };
        let permit = Arc::clone(&self.free).acquire_owned().await.context("the server ends")?;
        let ran = spawn_blocking(move || {
            let _permit = permit;
            crate::run(line, caller)
        });
        let ran = ran.await.context("this is a fault of hlo-dump: the command failed")?;
        answer(&self.tools[at], ran, limit)
    }
}

/// Returns the answer of a command: its JSON or text, and what it noted beside that.
fn answer(tool: &CommandTool, Ran { status, out, err }: Ran, limit: Option<usize>) -> Result<CallToolResult> {
    let noted = String::from_utf8_lossy(&err).trim().to_owned();
    if status > 1 {
        let said = noted.strip_prefix("error: ").unwrap_or(&noted).to_owned();
        return Ok(CallToolResult::error(vec![ContentBlock::text(said)]));
    }
    let mut result = if tool.output_schema.is_some() {
        let mut answer: Value = serde_json::from_slice(&out).context("this is a fault of hlo-dump: its JSON")?;
        limit.into_iter().for_each(|limit| cut(&mut answer, limit));
        CallToolResult::structured(answer)
    } else {
        let text = String::from_utf8(out).context("the answer is no text")?;
        CallToolResult::success(vec![ContentBlock::text(first_lines(text, limit))])
    };
    if !noted.is_empty() {
        result.content.push(ContentBlock::text(noted));
    }
    Ok(result)
}

/// Returns as many whole lines as a number of bytes has room for; a part of the first if it is longer.
fn first_lines(text: String, limit: Option<usize>) -> String {
    let Some(limit) = limit.filter(|limit| *limit < text.len()) else { return text };
    let line = text.as_bytes()[..limit].iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
    let end = line.or_else(|| (0..=limit).rev().find(|at| text.is_char_boundary(*at))).unwrap_or(0);
    let rest = text.len() - end;
    format!("{}\n... and {rest} more bytes: ask for one computation, or for all with limit 0", &text[..end])
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let name = Implementation::new("hlo-dump", env!("CARGO_PKG_VERSION"));
        let mut config = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
        config.server_info = name;
        config.with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tool = |it: &CommandTool| {
            let mut tool = Tool::new(it.name().to_owned(), it.about(), Arc::new(it.input_schema.clone()));
            tool.output_schema = it.output_schema.clone().map(Arc::new);
            tool.annotations = Some(ToolAnnotations::new().read_only(true).idempotent(true).open_world(false));
            tool
        };
        Ok(ListToolsResult::with_all_items(self.tools.iter().map(tool).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        // An error of a tool reaches the model, which can do better; one of the protocol does not.
        let result = self.call(&request.name, request.arguments.unwrap_or_default()).await;
        let failed = |error: anyhow::Error| CallToolResult::error(vec![ContentBlock::text(format!("{error:#}"))]);
        Ok(result.unwrap_or_else(failed).into())
    }
}

/// A transport that passes over lines which are no request until the client introduces itself.
/// Such a line would end the server.
struct Begins<T> {
    transport: T,
    has_begun: bool,
}

impl<T: Transport<RoleServer>> Transport<RoleServer> for Begins<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.transport.send(message)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            let message = self.transport.receive().await?;
            match &message {
                ClientJsonRpcMessage::Request(JsonRpcRequest { request, .. }) => {
                    self.has_begun |= matches!(request, ClientRequest::InitializeRequest(_));
                    return Some(message);
                }
                _ if self.has_begun => return Some(message),
                _ => {}
            }
        }
    }

    fn close(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        self.transport.close()
    }
}
