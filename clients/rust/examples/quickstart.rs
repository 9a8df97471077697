use ticketing::{Client, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let client = Client::builder().connect().await?;
    let ticket = client.acquire("orders/42").await?;
    println!("I hold {} with token {}", ticket.key().escape_ascii(), ticket.token());
    ticket.release().await?;
    client.close().await;
    Ok(())
}
